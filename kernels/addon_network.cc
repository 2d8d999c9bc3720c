// The forward pass as an object of Node: built layer by layer from typed arrays, which are copied, and run over the typed
// arrays of slots, which are not. Invariant: sizes, ids and rows are checked here, before a pointer is formed; what is out
// of range is a RangeError, and nothing is computed then.
//
//   new Network(shape) -> addLayer(layer)..., finish(rest), then forward(tokens, extra, slots, logits)..., close()
#include "addon.h"
#include "network.h"

namespace refrain {

namespace {

// Fields of a token in the array that `forward` takes.
constexpr size_t kTokenFields = 7;

// Reads members of objects; after the first fault all that it gives is empty, and an exception is pending.
class Reader {
 public:
  explicit Reader(Napi::Env env) : env_(env) {}

  bool failed() const { return env_.IsExceptionPending(); }

  size_t count(const Napi::Object& from, const char* name) {
    const double number = real(from, name);
    if (!(number >= 0) || number > 4294967295.0 || number != static_cast<double>(static_cast<uint64_t>(number))) {
      throw_range(env_, std::string(name) + " must be a count");
      return 0;
    }
    return static_cast<size_t>(number);
  }

  double real(const Napi::Object& from, const char* name) {
    if (failed()) return 0;
    const Napi::Value value = from.Get(name);
    if (!value.IsNumber()) {
      throw_range(env_, std::string(name) + " must be a number");
      return 0;
    }
    return value.As<Napi::Number>().DoubleValue();
  }

  bool flag(const Napi::Object& from, const char* name) { return !failed() && from.Get(name).ToBoolean().Value(); }

  // The floats of a member of `length` elements; null where it is absent and may be.
  const float* floats(const Napi::Object& from, const char* name, size_t length, bool optional = false) {
    if (failed()) return nullptr;
    const Napi::Value value = from.Get(name);
    if (optional && value.IsUndefined()) return nullptr;
    const View<float> view = view_of<float>(env_, value, napi_float32_array, "weights must be Float32Arrays");
    return checked(view.elements, view.length, length, name);
  }

  const uint8_t* bytes(const Napi::Object& from, const char* name, size_t length) {
    if (failed()) return nullptr;
    const View<uint8_t> view = view_of<uint8_t>(env_, from.Get(name), napi_uint8_array, "q must be a Uint8Array");
    return checked(view.elements, view.length, length, name);
  }

  std::vector<float> vector(const Napi::Object& from, const char* name, size_t length, bool optional = false) {
    const float* const values = floats(from, name, length, optional);
    return values == nullptr ? std::vector<float>() : std::vector<float>(values, values + length);
  }

  Napi::Object object(const Napi::Object& from, const char* name) {
    if (!failed() && from.Get(name).IsObject()) return from.Get(name).As<Napi::Object>();
    throw_range(env_, std::string(name) + " is missing");
    return Napi::Object::New(env_);
  }

  StoredMatrix matrix(const Napi::Object& from, size_t cols) {
    StoredMatrix stored;
    stored.rows = count(from, "rows");
    stored.cols = cols;
    stored.block = count(from, "block");
    stored.bias = floats(from, "bias", stored.rows, true);
    if (failed()) return stored;
    if (stored.block == 0) {
      stored.dense = floats(from, "dense", stored.rows * cols);
      return stored;
    }
    if ((stored.block != 16 && stored.block != 32) || cols % stored.block != 0) {
      throw_range(env_, "blocks must be of 16 or 32 columns and divide a row");
      return stored;
    }
    const size_t blocks = stored.rows * cols / stored.block;
    stored.offsets = floats(from, "offsets", blocks, true);
    const Napi::Array products = object(from, "products").As<Napi::Array>();
    for (uint32_t p = 0; p < products.Length() && !failed(); p++) {
      const Napi::Object product = products.Get(p).As<Napi::Object>();
      stored.products.push_back({bytes(product, "q", stored.rows * cols / 2), floats(product, "scales", blocks),
                                 static_cast<int>(count(product, "zeroPoint"))});
    }
    return stored;
  }

  // Matrices of the same input, which give `rows` results together.
  Projection projection(const Napi::Object& from, const char* name, size_t cols, size_t rows) {
    Projection matrices;
    const Napi::Array list = object(from, name).As<Napi::Array>();
    size_t found = 0;
    for (uint32_t i = 0; i < list.Length() && !failed(); i++) {
      const StoredMatrix stored = matrix(list.Get(i).As<Napi::Object>(), cols);
      if (failed()) break;
      found += stored.rows;
      matrices.emplace_back(stored);
    }
    if (!failed() && found != rows) throw_range(env_, std::string(name) + " has another number of rows");
    return matrices;
  }

 private:
  template <typename Element>
  const Element* checked(const Element* elements, size_t length, size_t wanted, const char* name) {
    if (elements == nullptr || length == wanted) return elements;
    throw_range(env_, std::string(name) + " has " + std::to_string(length) + " elements, not " + std::to_string(wanted));
    return nullptr;
  }

  Napi::Env env_;
};

// What is wrong with a shape, or null.
const char* fault_of(const NetworkShape& shape) {
  if (shape.layers == 0 || shape.heads == 0 || shape.kv_heads == 0 || shape.vocab_size == 0) return "a size is zero";
  if (shape.heads % shape.kv_heads != 0) return "heads must be a multiple of kvHeads";
  if (shape.heads / shape.kv_heads > kMostQueryRows) return "too many heads share a KV head";
  if (shape.head_dim == 0 || shape.head_dim % 16 != 0 || shape.head_dim > kMostHeadDim) {
    return "headDim must be a multiple of 16 up to 256";
  }
  if (shape.dim == 0 || shape.dim % 16 != 0) return "dim must be a multiple of 16";
  if (shape.hidden_dim == 0 || shape.hidden_dim % 16 != 0) return "hiddenDim must be a multiple of 16";
  if (shape.rope_dim % 2 != 0 || shape.rope_dim > shape.head_dim) return "ropeDim must be even and within a head";
  return nullptr;
}

class NetworkObject : public Napi::ObjectWrap<NetworkObject> {
 public:
  static Napi::Function define(Napi::Env env, const RowKernels& kernels) {
    void* const data = const_cast<RowKernels*>(&kernels);
    return DefineClass(env, "Network",
                       {InstanceMethod("addLayer", &NetworkObject::add_layer),
                        InstanceMethod("finish", &NetworkObject::finish),
                        InstanceMethod("forward", &NetworkObject::forward),
                        InstanceMethod("close", &NetworkObject::close)},
                       data);
  }

  explicit NetworkObject(const Napi::CallbackInfo& info)
      : Napi::ObjectWrap<NetworkObject>(info), kernels_(*static_cast<const RowKernels*>(info.Data())) {
    const Napi::Env env = info.Env();
    if (!info[0].IsObject()) {
      throw_range(env, "a shape is needed");
      return;
    }
    const Napi::Object shape = info[0].As<Napi::Object>();
    Reader reader(env);
    shape_.layers = reader.count(shape, "layers");
    shape_.heads = reader.count(shape, "heads");
    shape_.kv_heads = reader.count(shape, "kvHeads");
    shape_.head_dim = reader.count(shape, "headDim");
    shape_.dim = reader.count(shape, "dim");
    shape_.hidden_dim = reader.count(shape, "hiddenDim");
    shape_.vocab_size = reader.count(shape, "vocabSize");
    shape_.positions = reader.count(shape, "positions");
    shape_.rope_dim = reader.count(shape, "ropeDim");
    shape_.epsilon = static_cast<float>(reader.real(shape, "epsilon"));
    shape_.interleaved = reader.flag(shape, "interleaved");
    shape_.round_kv = reader.flag(shape, "roundKv");
    threads_ = reader.count(shape, "threads");
    if (reader.failed()) return;
    const char* fault = fault_of(shape_);
    if (threads_ == 0 || threads_ > 1024) fault = "threads must be from 1 to 1024";
    if (fault != nullptr) throw_range(env, fault);
  }

 private:
  void add_layer(const Napi::CallbackInfo& info) {
    if (!info[0].IsObject()) return throw_range(info.Env(), "a layer is needed");
    const Napi::Object from = info[0].As<Napi::Object>();
    Reader reader(info.Env());
    const size_t queries = shape_.heads * shape_.head_dim;
    LayerWeights layer;
    layer.attention_norm = reader.vector(from, "attentionNorm", shape_.dim);
    layer.qkv = reader.projection(from, "qkv", shape_.dim, queries + 2 * shape_.kv_heads * shape_.head_dim);
    layer.query_norm = reader.vector(from, "queryNorm", shape_.head_dim, true);
    layer.key_norm = reader.vector(from, "keyNorm", shape_.head_dim, true);
    layer.attention_output = reader.projection(from, "attentionOutput", queries, shape_.dim);
    layer.feed_forward_norm = reader.vector(from, "feedForwardNorm", shape_.dim);
    layer.gate_up = reader.projection(from, "gateUp", shape_.dim, 2 * shape_.hidden_dim);
    layer.down = reader.projection(from, "down", shape_.hidden_dim, shape_.dim);
    if (!reader.failed()) weights_.layers.push_back(std::move(layer));
  }

  void finish(const Napi::CallbackInfo& info) {
    const Napi::Env env = info.Env();
    if (!info[0].IsObject()) return throw_range(env, "the rest of the weights is needed");
    const Napi::Object from = info[0].As<Napi::Object>();
    Reader reader(env);
    const StoredMatrix embedding = reader.matrix(reader.object(from, "embedding"), shape_.dim);
    weights_.output_norm = reader.vector(from, "outputNorm", shape_.dim);
    weights_.head = reader.projection(from, "head", shape_.dim, shape_.vocab_size);
    weights_.cos = reader.vector(from, "cos", shape_.positions * shape_.rope_dim / 2);
    weights_.sin = reader.vector(from, "sin", shape_.positions * shape_.rope_dim / 2);
    if (reader.failed()) return;
    if (embedding.rows != shape_.vocab_size) return throw_range(env, "embedding has another number of rows");
    if (weights_.layers.size() != shape_.layers) return throw_range(env, "a layer is missing");
    weights_.embedding = std::make_unique<Embedding>(embedding);
    network_ = std::make_unique<Network>(shape_, std::move(weights_), kernels_, threads_);
  }

  void forward(const Napi::CallbackInfo& info) {
    const Napi::Env env = info.Env();
    if (network_ == nullptr) return throw_range(env, "the network is not built, or closed");
    const auto fields = view_of<int32_t>(env, info[0], napi_int32_array, "tokens must be an Int32Array");
    if (fields.elements == nullptr) return;
    const auto extra = view_of<int32_t>(env, info[1], napi_int32_array, "extra must be an Int32Array");
    if (extra.elements == nullptr) return;
    const auto logits = view_of<float>(env, info[3], napi_float32_array, "logits must be a Float32Array");
    if (logits.elements == nullptr) return;
    if (!read_slots(env, info[2]) || !read_tokens(env, fields, extra)) return;
    size_t wanted = 0;
    for (const Token& token : tokens_) wanted += token.wants_logits ? 1 : 0;
    if (logits.length < wanted * shape_.vocab_size) return throw_range(env, "logits has too few elements");
    network_->forward(tokens_, slots_, extra.elements, logits.elements);
  }

  bool read_slots(Napi::Env env, const Napi::Value& value) {
    slots_.clear();
    if (!value.IsArray()) return throw_range(env, "slots must be an array"), false;
    const Napi::Array list = value.As<Napi::Array>();
    Reader reader(env);
    for (uint32_t i = 0; i < list.Length() && !reader.failed(); i++) {
      const Napi::Object from = list.Get(i).As<Napi::Object>();
      SlotView slot;
      slot.capacity = reader.count(from, "capacity");
      for (const char* const letter : {"k", "v"}) {
        const Napi::Array buffers = reader.object(from, letter).As<Napi::Array>();
        std::vector<float*>& rows = letter[0] == 'k' ? slot.k : slot.v;
        for (uint32_t l = 0; l < shape_.layers && !reader.failed(); l++) {
          const auto view = view_of<float>(env, buffers.Get(l), napi_float32_array, "slots must be of Float32Arrays");
          if (view.elements == nullptr) break;
          if (view.length < shape_.kv_heads * slot.capacity * shape_.head_dim) throw_range(env, "a slot is too small");
          rows.push_back(view.elements);
        }
      }
      slots_.push_back(std::move(slot));
    }
    return !reader.failed();
  }

  bool read_tokens(Napi::Env env, const View<int32_t>& fields, const View<int32_t>& extra) {
    tokens_.clear();
    for (size_t at = 0; at + kTokenFields <= fields.length; at += kTokenFields) {
      const int32_t* const f = fields.elements + at;
      const Token token{f[0], f[1], f[2], f[3], f[4], f[5], f[6] != 0};
      if (!is_valid(token, extra)) return throw_range(env, "a token is out of range"), false;
      tokens_.push_back(token);
    }
    if (tokens_.empty()) return throw_range(env, "no tokens"), false;
    return true;
  }

  bool is_valid(const Token& token, const View<int32_t>& extra) const {
    const auto within = [](int32_t value, size_t end) { return value >= 0 && static_cast<size_t>(value) < end; };
    if (!within(token.id, shape_.vocab_size) || !within(token.slot, slots_.size())) return false;
    const size_t capacity = slots_[static_cast<size_t>(token.slot)].capacity;
    if (!within(token.row, capacity) || !within(token.sees, capacity + 1)) return false;
    if (token.extra < 0 || token.extras < 0 || token.extras > static_cast<int32_t>(capacity)) return false;
    if (static_cast<size_t>(token.extra) + static_cast<size_t>(token.extras) > extra.length) return false;
    for (int32_t i = 0; i < token.extras; i++) {
      if (!within(extra.elements[token.extra + i], capacity)) return false;
    }
    return within(token.position(), shape_.positions);
  }

  void close(const Napi::CallbackInfo&) { network_ = nullptr; }

  const RowKernels& kernels_;
  NetworkShape shape_;
  size_t threads_ = 1;
  NetworkWeights weights_;
  std::unique_ptr<Network> network_;
  std::vector<Token> tokens_;
  std::vector<SlotView> slots_;
};

}  // namespace

Napi::Array export_networks(Napi::Env env) {
  Napi::Array list = Napi::Array::New(env);
  uint32_t count = 0;
  for (const RowKernels* const* form = row_kernels(); *form != nullptr; form++) {
    Napi::Object object = Napi::Object::New(env);
    object.Set("name", (*form)->name);
    object.Set("Network", NetworkObject::define(env, **form));
    list.Set(count++, object);
  }
  return list;
}

}  // namespace refrain
