"""What a flow wrote is shown when it fails, and when a check of what it told does."""

import os
import subprocess
import sys

import pytest

from processes import HERE, flow_logs, group_members, python, run_flow, running


@pytest.mark.parametrize("end", ["sys.exit(1)", "os.kill(os.getpid(), 9)", ""])
def test_what_a_flow_that_fails_wrote_is_kept(tmp_path, end):
    script = tmp_path / "flow.py"
    script.write_text(f"import os, sys; print('said'); print('logged', file=sys.stderr, flush=True); {end}")
    with pytest.raises(AssertionError, match="ended with code"):
        run_flow(str(script), "model", "mode")
    ((name, log),) = flow_logs[-1:]
    assert name == f"{script} mode" and "logged" in log


CHECK = """
from processes import flow_logs, run_flow

def test_that_fails():
    assert run_flow("{script}", "model")["step"] == "right"
"""


def test_what_a_flow_wrote_is_shown_with_a_check_that_fails(tmp_path):
    script = tmp_path / "flow.py"
    script.write_text("""import sys; print('what was logged', file=sys.stderr); print('FLOW {"step": "wrong"}')""")
    check = tmp_path / "test_check.py"
    check.write_text(CHECK.format(script=script))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", os.devnull, "-p", "conftest", "-p", "no:cacheprovider", check],
        env=os.environ | {"PYTHONPATH": str(HERE)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 1 and "what was logged" in done.stdout, done.stdout + done.stderr


def test_what_is_started_leads_a_group_of_our_session():
    """One of its own the kernel might let starve, or let starve others."""
    child = "import time; print('ready', flush=True); time.sleep(60)"
    with running(*python(child)) as process:
        assert os.getsid(process.pid) == os.getsid(0)
        assert group_members(process.pid) == [process.pid]
    assert group_members(process.pid) == []
