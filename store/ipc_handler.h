// Answers one request to a StoreServer: frames in, frames out. Any thread may call.
#pragma once

#include <span>
#include <vector>

#include "store/ipc_wire.h"
#include "store/kv_store.h"
#include "store/zmq_socket.h"

namespace newmoon::ipc {

class Handler {
 public:
  explicit Handler(KvStore& store) : store_(store) {}

  // `body`: the frames behind the head. The whole reply, head first; an error reply
  // if the body is not what the head says.
  ZmqFrames answer(const Head& head, std::span<const ZmqFrame> body);

  // The reply to what cannot be answered otherwise.
  static ZmqFrames refuse(const Head& head, const Error& error);

 private:
  // The frames behind the reply's head.
  Result<ZmqFrames> put(const Head& head, std::span<const ZmqFrame> body);
  Result<ZmqFrames> get(const Head& head, std::span<const ZmqFrame> body);
  Result<ZmqFrames> hit_prefix(const Head& head, ByteView body);
  Result<ZmqFrames> remove(ByteView body);
  Result<ZmqFrames> purge_scope(const Head& head, ByteView body);
  Result<ZmqFrames> describe_scope(ByteView body);
  Result<ZmqFrames> hold_scope(ByteView body);
  Result<ZmqFrames> remove_all();
  Result<ZmqFrames> ping();
  Result<ZmqFrames> stats();
  Result<ZmqFrames> list_scopes(Head& reply);
  Result<ZmqFrames> dispatch(const Head& head, std::span<const ZmqFrame> body, Head& reply);

  KvStore& store_;
};

}  // namespace newmoon::ipc
