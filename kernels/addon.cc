// Exports the kernels as functions over typed arrays; the other file that knows Node is addon_network.cc. Invariant: every
// range is checked here, before a pointer is formed; out of range is a RangeError, a wrong type a TypeError, and nothing
// is written then.
//
//   exports = { forms: [ { name: 'avx512f+sse4.2', packRows, unpackRows, crc32c }, ..., { name: 'scalar+scalar', ... } ],
//               askLargePages, networks: [ { name: 'avx512vnni', Network }, ..., { name: 'scalar', Network } ] }
//
// forms[0] is the fastest that this processor runs; the others are there so that tests hold all of them to the fallback.
#include "addon.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

#include <cmath>
#include <string>

#include "crc32c.h"
#include "kv_pack.h"

namespace {

using refrain::Checksum;
using refrain::Converter;
using refrain::throw_range;
using refrain::view_of;

struct Form {
  const Converter* converter;
  const Checksum* checksum;
};

constexpr double kMaxSafeInteger = 9007199254740991.0;

// Reads `count` non-negative integers from the arguments; false with an exception pending when one is none.
bool read_integers(const Napi::CallbackInfo& info, const int* positions, size_t* into, int count) {
  for (int i = 0; i < count; i++) {
    double number = 0;
    const napi_status status = napi_get_value_double(info.Env(), info[positions[i]], &number);
    if (status != napi_ok || !(number >= 0) || number > kMaxSafeInteger || std::floor(number) != number) {
      throw_range(info.Env(), "offsets, strides and counts must be non-negative integers");
      return false;
    }
    into[i] = static_cast<size_t>(number);
  }
  return true;
}

// Whether rows of `shape` from `offset` on lie within `length` elements. Written with divisions: no product overflows.
bool rows_fit(size_t length, size_t offset, const refrain::Rows& shape) {
  if (offset > length || shape.row_elements > length - offset) return false;
  const size_t room = length - offset - shape.row_elements;
  return shape.rows <= 1 || shape.stride <= room / (shape.rows - 1);
}

const Form& form_of(const Napi::CallbackInfo& info) { return *static_cast<const Form*>(info.Data()); }

// packRows(source, sourceOffset, sourceStride, rows, rowElements, target, targetOffset)
void pack_rows(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  const auto source = view_of<float>(env, info[0], napi_float32_array, "source must be a Float32Array");
  if (source.elements == nullptr) return;
  const auto target = view_of<uint16_t>(env, info[5], napi_uint16_array, "target must be a Uint16Array");
  if (target.elements == nullptr) return;
  constexpr int kPositions[] = {1, 2, 3, 4, 6};
  size_t number[5];
  if (!read_integers(info, kPositions, number, 5)) return;
  const refrain::Rows strided{number[2], number[3], number[1]};
  const refrain::Rows dense{number[2], number[3], number[3]};
  if (strided.rows == 0 || strided.row_elements == 0) return;
  if (!rows_fit(source.length, number[0], strided)) return throw_range(env, "a row lies outside the source");
  if (!rows_fit(target.length, number[4], dense)) return throw_range(env, "a row lies outside the target");
  refrain::pack_rows(*form_of(info).converter, source.elements + number[0], strided, target.elements + number[4]);
}

// unpackRows(source, sourceOffset, rows, rowElements, target, targetOffset, targetStride)
void unpack_rows(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  const auto source = view_of<uint16_t>(env, info[0], napi_uint16_array, "source must be a Uint16Array");
  if (source.elements == nullptr) return;
  const auto target = view_of<float>(env, info[4], napi_float32_array, "target must be a Float32Array");
  if (target.elements == nullptr) return;
  constexpr int kPositions[] = {1, 2, 3, 5, 6};
  size_t number[5];
  if (!read_integers(info, kPositions, number, 5)) return;
  const refrain::Rows strided{number[1], number[2], number[4]};
  const refrain::Rows dense{number[1], number[2], number[2]};
  if (strided.rows == 0 || strided.row_elements == 0) return;
  if (!rows_fit(source.length, number[0], dense)) return throw_range(env, "a row lies outside the source");
  if (!rows_fit(target.length, number[3], strided)) return throw_range(env, "a row lies outside the target");
  refrain::unpack_rows(*form_of(info).converter, source.elements + number[0], strided, target.elements + number[3]);
}

// crc32c(data, seed = 0)
Napi::Value crc32c(const Napi::CallbackInfo& info) {
  const Napi::Env env = info.Env();
  const auto data = view_of<uint8_t>(env, info[0], napi_uint8_array, "data must be a Uint8Array");
  if (data.elements == nullptr) return env.Undefined();
  uint32_t seed = 0;
  if (info.Length() > 1 && !info[1].IsUndefined() && napi_get_value_uint32(env, info[1], &seed) != napi_ok) {
    Napi::TypeError::New(env, "seed must be a number").ThrowAsJavaScriptException();
    return env.Undefined();
  }
  return Napi::Number::New(env, form_of(info).checksum->crc32c(seed, data.elements, data.length));
}

// askLargePages(buffer): memory that nobody has touched yet is to come in large pages, where the system has them. A wish.
void ask_large_pages(const Napi::CallbackInfo& info) {
  if (!info[0].IsArrayBuffer()) {
    Napi::TypeError::New(info.Env(), "an ArrayBuffer is needed").ThrowAsJavaScriptException();
    return;
  }
#if defined(__linux__) && defined(MADV_HUGEPAGE)
  constexpr uintptr_t kLarge = uintptr_t{2} << 20;
  Napi::ArrayBuffer buffer = info[0].As<Napi::ArrayBuffer>();
  const uintptr_t start = reinterpret_cast<uintptr_t>(buffer.Data());
  const uintptr_t first = (start + kLarge - 1) / kLarge * kLarge;
  const uintptr_t end = (start + buffer.ByteLength()) / kLarge * kLarge;
  if (first < end) madvise(reinterpret_cast<void*>(first), end - first, MADV_HUGEPAGE);
#endif
}

Napi::Object exported(Napi::Env env, const Form& form) {
  // The forms live as long as the library; Node hands the pointer back with each call.
  void* const data = const_cast<Form*>(&form);
  Napi::Object object = Napi::Object::New(env);
  object.Set("name", std::string(form.converter->name) + "+" + form.checksum->name);
  object.Set("packRows", Napi::Function::New(env, pack_rows, "packRows", data));
  object.Set("unpackRows", Napi::Function::New(env, unpack_rows, "unpackRows", data));
  object.Set("crc32c", Napi::Function::New(env, crc32c, "crc32c", data));
  return object;
}

struct Forms {
  static constexpr int kMost = 4;
  Form list[kMost] = {};
  int count = 0;

  Forms() {
    const Converter* const* converter = refrain::converters();
    const Checksum* const* checksum = refrain::checksums();
    for (; *converter != nullptr && count < kMost; converter++) {
      list[count++] = Form{*converter, *checksum};
      if (checksum[1] != nullptr) checksum++;
    }
  }
};

Napi::Object init(Napi::Env env, Napi::Object exports) {
  static const Forms forms;
  Napi::Array list = Napi::Array::New(env);
  for (int i = 0; i < forms.count; i++) list.Set(static_cast<uint32_t>(i), exported(env, forms.list[i]));
  exports.Set("forms", list);
  exports.Set("askLargePages", Napi::Function::New(env, ask_large_pages, "askLargePages"));
  exports.Set("networks", refrain::export_networks(env));
  return exports;
}

}  // namespace

NODE_API_MODULE(refrain_kernels, init)
