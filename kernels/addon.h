// What the files that know Node share: views of typed arrays, checked. Invariant: an exception is pending whenever one of
// these gives nothing.
#pragma once

#include <napi.h>

namespace refrain {

inline void throw_range(Napi::Env env, const std::string& message) {
  if (!env.IsExceptionPending()) Napi::RangeError::New(env, message).ThrowAsJavaScriptException();
}

// A view of a typed array's elements; `elements` is null and an exception is pending when it is of another type.
template <typename Element>
struct View {
  Element* elements = nullptr;
  size_t length = 0;
};

template <typename Element>
View<Element> view_of(Napi::Env env, napi_value value, napi_typedarray_type wanted, const char* message) {
  napi_typedarray_type type;
  View<Element> view;
  void* data = nullptr;
  const napi_status status = napi_get_typedarray_info(env, value, &type, &view.length, &data, nullptr, nullptr);
  if (status != napi_ok || type != wanted) {
    Napi::TypeError::New(env, message).ThrowAsJavaScriptException();
    return view;
  }
  // An empty array has no memory; nothing is ever read through this pointer then.
  static Element nothing{};
  view.elements = data == nullptr ? &nothing : static_cast<Element*>(data);
  return view;
}

/// The forms of the forward pass that this processor runs, fastest first: [{ name, Network }].
Napi::Array export_networks(Napi::Env env);

}  // namespace refrain
