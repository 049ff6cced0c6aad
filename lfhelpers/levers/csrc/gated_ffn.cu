// silu(gate) * up and its gradient: every number is read once and written once, and nothing in between is rounded.
//
// `packed` [rows, 2 * hidden] is what one matrix product of x with both weights gives: gate on the left, up on the
// right. A thread moves 16 bytes of each tensor once and ends, so while some blocks wait for what they have asked for,
// others store, and new ones ask. It counts in 64 bits, since rows * 2 * hidden may pass 2^31. Matrix products stay
// outside: cuBLAS does them at the speed of the device.

#include <ATen/core/Tensor.h>
#include <ATen/Dispatch.h>
#include <ATen/OpMathType.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <c10/cuda/CUDAException.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <torch/library.h>

#include <cstdint>
#include <tuple>

namespace {

constexpr int kThreads = 128;

template <typename T, int N>
struct alignas(sizeof(T) * N) Vec {
  T at[N];
};

// 16 bytes leave in one store; assigned, the compiler would send each number by itself.
template <typename V>
__device__ __forceinline__ void store(void* to, const V& numbers) {
  if constexpr (sizeof(V) == sizeof(uint4)) {
    __stwb(static_cast<uint4*>(to), reinterpret_cast<const uint4&>(numbers));
  } else {
    *static_cast<V*>(to) = numbers;
  }
}

// Where exp overflows to infinity the quotient is 0, which is right: no number saturates to NaN.
template <typename T>
__device__ __forceinline__ at::opmath_type<T> sigmoid(at::opmath_type<T> x) {
  if constexpr (sizeof(T) == 2) {
    return __fdividef(1.0f, 1.0f + __expf(-x));  // 16 bits round away what the fast forms lose
  } else {
    return at::opmath_type<T>(1) / (at::opmath_type<T>(1) + exp(-x));
  }
}

template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
product_kernel(const T* __restrict__ packed, T* __restrict__ product, int64_t hidden) {
  using V = Vec<T, N>;
  using Wide = at::opmath_type<T>;
  const int64_t row = blockIdx.x, column = N * (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x);
  if (column >= hidden) return;
  const T* from = packed + row * 2 * hidden + column;
  const V gate = *reinterpret_cast<const V*>(from);
  const V up = *reinterpret_cast<const V*>(from + hidden);
  V out;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const Wide a = static_cast<Wide>(gate.at[i]);
    out.at[i] = static_cast<T>(a * sigmoid<T>(a) * static_cast<Wide>(up.at[i]));
  }
  store(product + row * hidden + column, out);
}

template <typename T, int N>
__global__ void __launch_bounds__(kThreads)
grad_kernel(const T* __restrict__ grad, const T* __restrict__ packed, T* __restrict__ grad_packed,
            T* __restrict__ product, int64_t hidden) {
  using V = Vec<T, N>;
  using Wide = at::opmath_type<T>;
  const int64_t row = blockIdx.x, column = N * (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x);
  if (column >= hidden) return;
  const int64_t wide_at = row * 2 * hidden + column, at = row * hidden + column;
  const V gate = *reinterpret_cast<const V*>(packed + wide_at);
  const V up = *reinterpret_cast<const V*>(packed + wide_at + hidden);
  const V given = *reinterpret_cast<const V*>(grad + at);
  V to_gate, to_up, out;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const Wide a = static_cast<Wide>(gate.at[i]), b = static_cast<Wide>(up.at[i]), g = static_cast<Wide>(given.at[i]);
    const Wide s = sigmoid<T>(a), silu = a * s;
    to_gate.at[i] = static_cast<T>(g * b * s * (Wide(1) + a * (Wide(1) - s)));
    to_up.at[i] = static_cast<T>(g * silu);
    out.at[i] = static_cast<T>(silu * b);  // the forward's result again, for the gradient of the down projection
  }
  store(grad_packed + wide_at, to_gate);
  store(grad_packed + wide_at + hidden, to_up);
  store(product + at, out);
}

bool in_vectors(const at::Tensor& tensor, int64_t hidden) {
  return hidden * tensor.element_size() % 16 == 0 && reinterpret_cast<std::uintptr_t>(tensor.const_data_ptr()) % 16 == 0;
}

dim3 grid_of(int64_t rows, int64_t hidden, int numbers) {
  const int64_t across = (hidden + kThreads * numbers - 1) / (kThreads * numbers);
  TORCH_CHECK(rows <= INT32_MAX && across <= 65535, "swiglu: ", rows, " rows of ", hidden, " are more than a grid holds");
  return dim3(static_cast<unsigned>(rows), static_cast<unsigned>(across));
}

void check(const at::Tensor& packed) {
  TORCH_CHECK(packed.is_cuda() && packed.dim() == 2 && packed.size(1) % 2 == 0 && packed.is_contiguous(),
              "swiglu: packed must be a contiguous CUDA tensor [rows, 2 * hidden]");
}

at::Tensor swiglu(const at::Tensor& packed) {
  check(packed);
  const c10::cuda::CUDAGuard guard(packed.device());
  const int64_t rows = packed.size(0), hidden = packed.size(1) / 2;
  at::Tensor product = at::empty({rows, hidden}, packed.options());
  if (product.numel() == 0) return product;
  const auto stream = c10::cuda::getCurrentCUDAStream();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, packed.scalar_type(), "swiglu", [&] {
    constexpr int kWide = 16 / sizeof(scalar_t);
    const scalar_t* from = packed.const_data_ptr<scalar_t>();
    scalar_t* to = product.mutable_data_ptr<scalar_t>();
    if (in_vectors(packed, hidden)) {
      product_kernel<scalar_t, kWide><<<grid_of(rows, hidden, kWide), kThreads, 0, stream>>>(from, to, hidden);
    } else {
      product_kernel<scalar_t, 1><<<grid_of(rows, hidden, 1), kThreads, 0, stream>>>(from, to, hidden);
    }
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  });
  return product;
}

std::tuple<at::Tensor, at::Tensor> swiglu_grad(const at::Tensor& grad, const at::Tensor& packed) {
  check(packed);
  const int64_t rows = packed.size(0), hidden = packed.size(1) / 2;
  TORCH_CHECK(grad.is_cuda() && grad.is_contiguous() && grad.scalar_type() == packed.scalar_type() &&
                  grad.dim() == 2 && grad.size(0) == rows && grad.size(1) == hidden,
              "swiglu_grad: grad must be a contiguous CUDA tensor [rows, hidden] of packed's dtype");
  const c10::cuda::CUDAGuard guard(packed.device());
  at::Tensor grad_packed = at::empty_like(packed), product = at::empty_like(grad);
  if (grad.numel() == 0) return {grad_packed, product};
  const auto stream = c10::cuda::getCurrentCUDAStream();
  AT_DISPATCH_FLOATING_TYPES_AND2(at::kHalf, at::kBFloat16, packed.scalar_type(), "swiglu_grad", [&] {
    constexpr int kWide = 16 / sizeof(scalar_t);
    const scalar_t *given = grad.const_data_ptr<scalar_t>(), *from = packed.const_data_ptr<scalar_t>();
    scalar_t *to = grad_packed.mutable_data_ptr<scalar_t>(), *out = product.mutable_data_ptr<scalar_t>();
    if (in_vectors(packed, hidden) && in_vectors(grad, hidden)) {
      grad_kernel<scalar_t, kWide>
          <<<grid_of(rows, hidden, kWide), kThreads, 0, stream>>>(given, from, to, out, hidden);
    } else {
      grad_kernel<scalar_t, 1><<<grid_of(rows, hidden, 1), kThreads, 0, stream>>>(given, from, to, out, hidden);
    }
    C10_CUDA_KERNEL_LAUNCH_CHECK();
  });
  return {grad_packed, product};
}

}  // namespace

TORCH_LIBRARY(lfhelpers_cuda, library) {
  library.def("swiglu(Tensor packed) -> Tensor");
  library.def("swiglu_grad(Tensor grad, Tensor packed) -> (Tensor, Tensor)");
}

TORCH_LIBRARY_IMPL(lfhelpers_cuda, CUDA, library) {
  library.impl("swiglu", &swiglu);
  library.impl("swiglu_grad", &swiglu_grad);
}
