// Log10 mel powers of a signal: windows of 400 samples every 160, a real DFT, mel filters.
//
// A block has 8 frames, thread k of 101 the bins k and 200 - k. With the windowed samples y, a = y[n] + y[400 - n] and
// b = y[n] - y[400 - n] for n of 1 to 199 (a = y[n], b = 0 at n = 0 and n = 200), and angles 2 pi k n / 400:
//
//   ca, sa = sums of a cos, b sin over the even n; cb, sb over the odd n
//   power[k] = (ca + cb)^2 + (sa + sb)^2;   power[200 - k] = (ca - cb)^2 + (sa - sb)^2
//
// Each sum is 10 sums of 10 products: the rounding error is 1.2 times that of an FFT in f32, that of sums of 100 products 1.6 times
// (root mean square over loud tones in quiet noise). A cosine and a sine from L2 serve 8 frames, which take 64 registers of sums;
// samples of one n of all frames are broadcast from shared memory, two loads of 16 bytes for 8 products.
#include "common.cuh"

struct LogMelParams {
    const float *samples; // [160 (n_frames - 1) + 400]
    const float *window;  // [400]
    const float2 *angles; // [201, 128]: cosine and sine of angle n of thread k; zeros from k = 101 on.
    const uint2 *filters; // [n_mels + 1]: first bin, first weight. The weights of a filter end where those of the next begin.
    const float *weights;
    float *out;    // [n_frames, n_mels]
    float *maxima; // [blocks]: largest value of each block.
    u32 n_frames, n_mels;
};

#define N_FFT 400
#define HOP 160
#define FRAMES 8
#define THREADS 128
// Pairs of bins.
#define PAIRS 101
#define LEAST_POWER 1e-10f

// Sums of a thread, of each frame.
struct Sums {
    float even_cos[FRAMES], odd_cos[FRAMES], even_sin[FRAMES], odd_sin[FRAMES];
};

// Eight values of shared memory.
DEVICE void load_frames(float (&x)[FRAMES], const float *from) {
#pragma unroll
    for (int i = 0; i < FRAMES; i += 4) {
        float4 four = *(const float4 *)(from + i);
        x[i] = four.x, x[i + 1] = four.y, x[i + 2] = four.z, x[i + 3] = four.w;
    }
}

DEVICE void add_products(float (&sums)[FRAMES], const float *x, float factor) {
    float frames[FRAMES];
    load_frames(frames, x);
#pragma unroll
    for (int f = 0; f < FRAMES; f++) sums[f] = fmaf(frames[f], factor, sums[f]);
}

KERNEL(THREADS) log_mel(const __grid_constant__ LogMelParams p) {
    begin_kernel();
    // Samples of all frames side by side: a, then b. Later the powers.
    __shared__ __align__(16) float memory[2][N_FFT / 2 + 1][FRAMES];
    u32 tid = threadIdx.x, first = blockIdx.x * FRAMES;
    u32 n_frames = min(FRAMES, p.n_frames - first);
    for (u32 i = tid; i < (N_FFT / 2 + 1) * FRAMES; i += THREADS) {
        u32 n = i / FRAMES, f = i % FRAMES;
        bool is_pair = n > 0 && n < N_FFT / 2;
        float low = 0.f, high = 0.f;
        if (f < n_frames) {
            const float *x = p.samples + (size_t)(first + f) * HOP;
            // Rounded before the sum, as on the host.
            low = __fmul_rn(x[n], p.window[n]);
            if (is_pair) high = __fmul_rn(x[N_FFT - n], p.window[N_FFT - n]);
        }
        memory[0][n][f] = low + high;
        memory[1][n][f] = is_pair ? low - high : 0.f;
    }
    __syncthreads();

    Sums total;
    const float2 *angles = p.angles + tid;
    float last = __ldg(angles + N_FFT / 2 * THREADS).x;
#pragma unroll
    for (int f = 0; f < FRAMES; f++) {
        total.even_cos[f] = memory[0][N_FFT / 2][f] * last;
        total.odd_cos[f] = total.even_sin[f] = total.odd_sin[f] = 0.f;
    }
#pragma unroll 1
    for (u32 start = 0; start < N_FFT / 2; start += 20) {
        Sums part = {};
#pragma unroll 5
        for (u32 n = start; n < start + 20; n += 2) {
            float2 even = __ldg(angles + n * THREADS), odd = __ldg(angles + (n + 1) * THREADS);
            add_products(part.even_cos, memory[0][n], even.x);
            add_products(part.even_sin, memory[1][n], even.y);
            add_products(part.odd_cos, memory[0][n + 1], odd.x);
            add_products(part.odd_sin, memory[1][n + 1], odd.y);
        }
#pragma unroll
        for (int f = 0; f < FRAMES; f++) {
            total.even_cos[f] += part.even_cos[f], total.odd_cos[f] += part.odd_cos[f];
            total.even_sin[f] += part.even_sin[f], total.odd_sin[f] += part.odd_sin[f];
        }
    }
    __syncthreads();

    float(*powers)[N_FFT / 2 + 1] = (float(*)[N_FFT / 2 + 1])memory;
    if (tid < PAIRS) {
#pragma unroll
        for (int f = 0; f < FRAMES; f++) {
            auto power = [](float re, float im) { return re * re + im * im; };
            powers[f][N_FFT / 2 - tid] = power(total.even_cos[f] - total.odd_cos[f], total.even_sin[f] - total.odd_sin[f]);
            powers[f][tid] = power(total.even_cos[f] + total.odd_cos[f], total.even_sin[f] + total.odd_sin[f]);
        }
    }
    __syncthreads();

    float largest = -INFINITY;
    float *out = p.out + (size_t)first * p.n_mels;
    for (u32 i = tid; i < n_frames * p.n_mels; i += THREADS) {
        u32 f = i / p.n_mels, m = i % p.n_mels;
        uint2 filter = p.filters[m];
        u32 n_weights = p.filters[m + 1].y - filter.y;
        float sum = 0.f;
        for (u32 j = 0; j < n_weights; j++) sum = fmaf(p.weights[filter.y + j], powers[f][filter.x + j], sum);
        float x = log10f(fmaxf(sum, LEAST_POWER));
        out[i] = x;
        largest = fmaxf(largest, x);
    }
    largest = block_max(largest);
    if (tid == 0) p.maxima[blockIdx.x] = largest;
}
