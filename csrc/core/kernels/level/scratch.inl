// One thread's working memory, cut from a single block that the caller owns.

template <class T>
struct Scratch {
  T* w;                        // (dim) the client's model
  T* gradient;                 // (dim)
  T* velocity;                 // (dim)
  const T** x;                 // (kBlockRows) where each row of the block begins
  const std::int32_t** token;  // (kBlockRows) the same of rows of tokens
  const T** hidden_x;          // (kBlockRows) the same for a hidden layer's activations
  const T** weight_row;        // (widest layer) where each row of a weight matrix begins
  T* loaded;                   // (most rows, n_features) rows of bytes as numbers
  std::uint32_t* row;          // (kBlockRows) rows of the block, numbered within the client
  T* scale;                    // (kBlockRows) how much each counts
  T* target;                   // (kBlockRows) labels, or (outputs, kBlockRows)
  std::uint8_t* seen;          // (rows of the largest client, where merged) zero between calls
  T* z;                        // (outputs, kBlockRows) scores, then their gradients
  T* hidden[kMaxLayers];       // (kBlockRows, size of the layer) activations
  T* back[2];                  // (kBlockRows, widest hidden layer) their gradients
  NetworkScratch<T> layers;
  std::size_t bytes;

  Scratch(const Problem<T>& p, void* memory) : bytes(0) {
    char* base = static_cast<char*>(memory);
    const auto take = [this, base](auto*& pointer, std::int64_t n) {
      using Item = typename Pointee<decltype(+pointer)>::Type;
      pointer = reinterpret_cast<Item*>(base == nullptr ? nullptr : base + bytes);
      bytes += (static_cast<std::size_t>(n) * sizeof(Item) + 63) / 64 * 64;
    };
    take(w, p.dim);
    take(gradient, p.dim);
    take(velocity, p.dim);
    take(x, kBlockRows);
    take(token, p.token != nullptr ? kBlockRows : 0);
    take(loaded, p.byte != nullptr ? p.network->block_rows * p.n_features + kSlack : 0);
    take(row, kBlockRows);
    take(scale, kBlockRows);
    take(target, p.head == Head::Softmax || p.family == Family::Quadratic
                     ? kBlockRows
                     : std::int64_t{p.size[p.n_layers]} * kBlockRows);
    take(seen, p.max_rows <= kMostRowsMerged ? p.max_rows : 0);
    if (p.family == Family::Quadratic) {
      return;
    }
    if (p.family == Family::Layers) {
      layers.lay_out(*p.network, base == nullptr, take);
    }
    take(z, std::int64_t{p.size[p.n_layers]} * kBlockRows);
    std::int64_t widest = 0;
    for (int l = 1; l < p.n_layers; ++l) {
      take(hidden[l], kBlockRows * p.size[l]);
      widest = widest < p.size[l] ? p.size[l] : widest;
    }
    take(hidden_x, kBlockRows);
    take(back[0], kBlockRows * widest);
    take(back[1], kBlockRows * widest);
    take(weight_row, widest < p.size[p.n_layers] ? p.size[p.n_layers] : widest);
  }

 private:
  template <class P>
  struct Pointee;
  template <class P>
  struct Pointee<P*> {
    using Type = P;
  };
};
