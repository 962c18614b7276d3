// What the fuzz targets and the mutation test do with one input.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <variant>

#include "admin/protocol.h"

namespace newmoon::fuzz {

// A message from any bytes: frames of a length byte (255: the rest) and that many bytes.
inline Frames to_frames(ByteView input) {
  Frames frames;
  while (!input.empty()) {
    const std::size_t length = input[0] == 255 ? input.size() : input[0];
    input = input.subspan(1);
    const ByteView frame = input.first(std::min(length, input.size()));
    frames.emplace_back(frame.begin(), frame.end());
    input = input.subspan(frame.size());
  }
  return frames;
}

// Aborts if what was decoded is not what its own encoding decodes to.
inline void check_request(const Frames& frames) {
  const ProtocolLimits limits{.hashes_max = 1000, .frames_max = 100};
  const Result<Request> request = decode_request(frames, limits);
  if (!request) {
    if (request.error().code != Code::kBadRequest) std::abort();
    encode_error(peek_request_id(frames), request.error());
    return;
  }
  if (request->foreign) return;
  const Frames again = encode_request(request->request_id, *request);
  const Result<Request> decoded = decode_request(again, limits);
  if (!decoded || encode_request(decoded->request_id, *decoded) != again) std::abort();
}

// As every kind of client reads it.
inline void check_reply(const Frames& frames) {
  for (std::size_t index = 0; index < std::variant_size_v<decltype(Request::body)>; ++index) {
    const Result<Reply> reply = decode_reply(frames, index);
    if (reply && reply->request_id != peek_reply_id(frames)) std::abort();
  }
  (void)decode_foreign_lookup_reply(frames);
  (void)decode_foreign_reset_reply(frames);
}

}  // namespace newmoon::fuzz
