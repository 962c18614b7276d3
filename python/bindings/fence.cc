#include "connector/fence.h"

#include <optional>

#include "python/bindings/bind.h"

namespace newmoon {
namespace {

Fence make_fence(std::string model, std::string layout, std::string name_space) {
  SystemRandom random;
  return Fence(
      {std::move(name_space), std::move(model), std::move(layout), draw_incarnation(random)});
}

std::optional<Scope> adopt(Fence& fence, const std::optional<py::bytes>& digest,
                           const std::optional<std::string>& label) {
  const std::optional<WeightsIdentity> weights = to_weights(digest, label);
  return weights ? fence.adopt(*weights) : fence.adopt_unique();
}

py::tuple reset(Fence& fence, bool keep_verified) {
  Fence::ResetResult result = fence.reset(keep_verified);
  return py::make_tuple(std::string(to_string(result.outcome)), std::move(result.left));
}

}  // namespace

void bind_fence(py::module_& module) {
  py::class_<Fence>(module, "Fence")
      .def(py::init(&make_fence), py::kw_only(), py::arg("model"), py::arg("layout"),
           py::arg("namespace") = "")
      .def_property_readonly("epoch", &Fence::epoch)
      .def_property_readonly("sealed", &Fence::sealed)
      .def_property_readonly("scope", [](const Fence& self) { return self.scope(); })
      .def("seal", &Fence::seal)
      .def("adopt", &adopt, py::kw_only(), py::arg("digest") = py::none(),
           py::arg("label") = py::none())
      .def("reset", &reset, py::kw_only(), py::arg("keep_verified") = false)
      .def("note_scheduled", &Fence::note_scheduled);
}

}  // namespace newmoon
