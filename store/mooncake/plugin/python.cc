#include "store/mooncake/plugin/python.h"

#include <algorithm>
#include <cstring>

namespace newmoon::python {
namespace {

std::string text_of(PyObject* object) {
  const Object text(object == nullptr ? nullptr : PyObject_Str(object));
  const char* utf8 = text ? PyUnicode_AsUTF8(text.get()) : nullptr;
  if (utf8 == nullptr) PyErr_Clear();
  return utf8 == nullptr ? "" : utf8;
}

}  // namespace

std::string take_error() {
  PyObject *type = nullptr, *value = nullptr, *traceback = nullptr;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  const Object owned_type(type), owned_value(value), owned_traceback(traceback);
  const Object name(type == nullptr ? nullptr : PyObject_GetAttrString(type, "__name__"));
  std::string line = text_of(name.get()) + ": " + text_of(value);
  std::replace(line.begin(), line.end(), '\n', ' ');
  return line;
}

std::unexpected<Error> raised(std::string_view what) {
  return fail(Code::kInternal, "mooncake " + std::string(what) + ": " + take_error());
}

Object make_text(std::string_view ascii) {
  Object text(PyUnicode_New(static_cast<Py_ssize_t>(ascii.size()), 127));
  if (text) std::memcpy(PyUnicode_1BYTE_DATA(text.get()), ascii.data(), ascii.size());
  return text;
}

Object make_list(std::span<const std::string_view> ascii) {
  Object list(PyList_New(static_cast<Py_ssize_t>(ascii.size())));
  if (!list) return list;
  for (std::size_t i = 0; i < ascii.size(); ++i) {
    Object text = make_text(ascii[i]);
    if (!text) return {};
    PyList_SET_ITEM(list.get(), static_cast<Py_ssize_t>(i), text.release());
  }
  return list;
}

Object make_int(std::uint64_t value) { return Object(PyLong_FromUnsignedLongLong(value)); }

}  // namespace newmoon::python
