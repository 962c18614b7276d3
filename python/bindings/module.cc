#include "python/bindings/bind.h"

PYBIND11_MODULE(_core, module) {
  newmoon::bind_exit();
  newmoon::bind_errors(module);
  newmoon::bind_hash(module);
  newmoon::bind_store(module);
  newmoon::bind_fence(module);
  newmoon::bind_connector(module);
  newmoon::bind_lookup_client(module);
}
