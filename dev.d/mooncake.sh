# help: a mooncake_master for local use, in the foreground until Ctrl-C; --port P, --metrics-port P
#
# It listens on 127.0.0.1 only and forgets everything when it ends. The line it prints goes to
# any newmoon command; more options: store/mooncake/config.h. Exit code 0 after INT or TERM.
main() {
  local port=50051 metrics_port=9003 master
  while (($#)); do
    case "$1" in
      --port | --metrics-port) mooncake_port "$1" "${2:-}" ;;
      *) fail "mooncake takes --port P and --metrics-port P (got '$1')" ;;
    esac
    if [[ "$1" == --port ]]; then port="$2"; else metrics_port="$2"; fi
    shift 2
  done
  verb setup
  master="${NEWMOON_MOONCAKE_DIR:-$CACHE/mooncake}/mooncake/mooncake_master"
  [[ -x "$master" ]] || fail "there is no $master (NEWMOON_MOONCAKE_DIR names the wheel's folder)"
  mooncake_free "$port" --port
  mooncake_free "$metrics_port" --metrics-port
  mooncake_run
}

mooncake_run() {
  local pid="" code=0 stopped=false
  # A session of its own, so that Ctrl-C comes here first and is no error; killed with this shell.
  trap 'stopped=true; [[ -z "$pid" ]] || kill -KILL "$pid" 2>/dev/null' INT TERM HUP
  setsid setpriv --pdeathsig KILL "$master" --logtostderr --minloglevel=1 --rpc_address=127.0.0.1 --rpc_port="$port" \
    --metrics_host=127.0.0.1 --metrics_port="$metrics_port" &
  pid=$!
  until mooncake_answers "$port" && mooncake_answers "$metrics_port"; do
    kill -0 "$pid" 2>/dev/null || break
    sleep 0.05
  done
  if kill -0 "$pid" 2>/dev/null && [[ "$stopped" == false ]]; then
    local options=""
    ((metrics_port == 9003)) || options="?metrics_port=$metrics_port"
    echo "--store 'mooncake://127.0.0.1:$port$options'"
  fi
  wait "$pid" 2>/dev/null || code=$?
  if [[ "$stopped" == true ]]; then
    wait "$pid" 2>/dev/null || true  # the first one may have returned for the signal
    exit 0
  fi
  fail "mooncake_master ended by itself (exit code $code)"
}

mooncake_port() {  # OPTION VALUE
  [[ "$2" =~ ^[0-9]{1,5}$ ]] && ((10#$2 >= 1 && 10#$2 <= 65535)) ||
    fail "$1 takes a port (1 to 65535, got '$2')"
}

mooncake_answers() {  # PORT
  (: <"/dev/tcp/127.0.0.1/$1") 2>/dev/null
}

mooncake_free() {  # PORT OPTION
  ! mooncake_answers "$1" || fail "port $1 of 127.0.0.1 is taken; $2 chooses another"
}
