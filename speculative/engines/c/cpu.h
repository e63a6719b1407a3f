// The CPU: its registers of floats, and the instructions that multiply and add. And what threads need of the system.

#include <math.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
#ifdef _WIN32
int SwitchToThread(void), QueryPerformanceCounter(int64_t *), QueryPerformanceFrequency(int64_t *);
#define sched_yield SwitchToThread
#else
#include <sched.h>
#endif

static int64_t nanoseconds(void) {  // by a clock that nobody sets
#ifdef _WIN32
  int64_t ticks, a_second;
  QueryPerformanceCounter(&ticks);
  QueryPerformanceFrequency(&a_second);
  return ticks / a_second * 1000000000 + ticks % a_second * 1000000000 / a_second;
#else
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000000LL + now.tv_nsec;
#endif
}

// V floats fill a register. A row has two registers of sums: of 32 registers (AVX-512 and ARM) 10 rows leave enough for
// weights and inputs, of 16 registers 5 rows do.
#if defined(__AVX512F__) && defined(__AVX512BW__)
#define AVX512
enum { V = 16, ROWS = 10 };
#elif defined(__AVX2__) && defined(__FMA__)
#define AVX2
enum { V = 8, ROWS = 5 };
#elif defined(__aarch64__)
enum { V = 4, ROWS = 10 };
#else
enum { V = 4, ROWS = 5 };
#endif
enum { LANES = 2 * V, BLOCK = 32, MOST_ROWS = 10 };  // BLOCK inputs of a row lie together, and share a scale if rounded
enum { AMX_ROWS = 32 };  // of a group in bfloat16, where AMX multiplies
#define LOCALITY (FIRST_CACHE > 32768 ? 3 : 2)  // memory is asked for into the first cache [bytes], or the second

#define INLINE static inline __attribute__((always_inline))
#define VECTOR(type, size) type __attribute__((vector_size(size), aligned(sizeof(type)), may_alias))
typedef VECTOR(float, 4) one_float;  // that may lie among other types
typedef VECTOR(float, 4 * V) vfloat;
typedef VECTOR(int32_t, 4 * V) vint;
typedef VECTOR(int16_t, 4 * V) vshort;
typedef VECTOR(uint8_t, 4 * V) vbyte;
typedef VECTOR(uint16_t, 4 * V) vpair;
typedef VECTOR(uint16_t, 2 * V) vhalf;

typedef uint32_t __attribute__((may_alias)) word;

INLINE vfloat all(float x) { return x - (vfloat){0}; }  // x + 0 would be an addition: it turns -0 into 0
INLINE vfloat choose(vint mask, vfloat a, vfloat b) { return (vfloat)((mask & (vint)a) | (~mask & (vint)b)); }

INLINE vfloat multiply_add(vfloat sum, vfloat a, vfloat b) {  // rounded once, if the CPU can
#if defined(AVX512)
  return (vfloat)_mm512_fmadd_ps((__m512)a, (__m512)b, (__m512)sum);
#elif defined(AVX2)
  return (vfloat)_mm256_fmadd_ps((__m256)a, (__m256)b, (__m256)sum);
#elif defined(__aarch64__)
  return (vfloat)vfmaq_f32((float32x4_t)sum, (float32x4_t)a, (float32x4_t)b);
#else
  return sum + a * b;
#endif
}

// dot4 adds to each lane the products of 4 weights and 4 inputs, all int8. The instruction of x86 takes weights from 0
// to 255: EXCESS more than they are, and the products begin with EXCESS times the inputs taken away.
#if defined(__x86_64__)
enum { EXCESS = 128 };
#else
enum { EXCESS = 0 };
#endif

INLINE vint dot4(vint sum, vbyte w, vint x) {
#if defined(AVX512) && defined(__AVX512VNNI__)
  return (vint)_mm512_dpbusd_epi32((__m512i)sum, (__m512i)w, (__m512i)x);
#elif defined(AVX2) && defined(__AVXVNNI__)
  return (vint)_mm256_dpbusd_avx_epi32((__m256i)sum, (__m256i)w, (__m256i)x);
#elif defined(__ARM_FEATURE_DOTPROD)
  return (vint)vdotq_s32((int32x4_t)sum, (int8x16_t)w, (int8x16_t)x);
#else
  for (int i = 0; i < 32; i += 8) sum += ((vint)w << (24 - i) >> 24) * (x << (24 - i) >> 24);
  return sum;
#endif
}

// Older x86 multiplies and adds in two instructions.
// WIDE: 16-bit numbers times 16-bit numbers, two neighbours added into 32 bits.
// SMALL: 4-bit weights times 8-bit inputs, two neighbours added into 16 bits. With the start of the sum (rows.c) an
// input has a weight from -4 to 11 in its own lane, and -4 in the other: a block's sum is at most
// 16 * 127 * (11 + 4) = 30,480, so it cannot overflow.
#if defined(AVX512) && !defined(__AVX512VNNI__)
#define WIDE(w, x) (vint)_mm512_madd_epi16((__m512i)(w), (__m512i)(x))
#define SMALL(w, x) (vshort)_mm512_maddubs_epi16((__m512i)(w), (__m512i)(x))
#elif defined(AVX2) && !defined(__AVXVNNI__)
#define WIDE(w, x) (vint)_mm256_madd_epi16((__m256i)(w), (__m256i)(x))
#define SMALL(w, x) (vshort)_mm256_maddubs_epi16((__m256i)(w), (__m256i)(x))
#elif defined(__x86_64__) && !defined(AVX512) && !defined(AVX2)
#define WIDE(w, x) (vint)_mm_madd_epi16((__m128i)(w), (__m128i)(x))
#ifdef __SSSE3__
#define SMALL(w, x) (vshort)_mm_maddubs_epi16((__m128i)(w), (__m128i)(x))
#else
#define SMALL(w, x) (vshort)(((vshort)(w) & 255) * ((vshort)(x) << 8 >> 8) + ((vshort)(w) >> 8) * ((vshort)(x) >> 8))
#endif
#endif
#ifdef WIDE
enum { PAIRS = 1 };
#else
enum { PAIRS = 0 };
#endif

int64_t lanes(void) { return LANES; }
static int has_amx(void);  // whether AMX multiplies bfloat16: amx.c
const char *instructions(void) {  // that the loops are compiled for
  if (V == 16 && has_amx()) return "AVX-512 with VNNI and AMX";
  if (V == 16) return PAIRS ? "AVX-512" : "AVX-512 with VNNI";
  if (V == 8) return PAIRS ? "AVX2" : "AVX2 with VNNI";
  return EXCESS ? "SSE" : ROWS == 10 ? "NEON" : "plain C";
}

int multiplies_bytes(void) {  // whether an instruction does: then a row in int8 costs less than in float32
#if defined(__aarch64__) && !defined(__ARM_FEATURE_DOTPROD)
  return 0;
#else
  return !PAIRS && (V >= 8 || ROWS == 10);
#endif
}

// DOT2 adds the products of 2 bfloat16s, which are the upper halves of floats, and inputs i and i + 1 of a row (FLOAT
// and INT of products.c, where it is used). Without an instruction these are stored as floats.
#if defined(AVX512) && defined(__AVX512BF16__) && !defined(SLOW_DOT2)
#define DOT2(sum, w, i) (vfloat)_mm512_dpbf16_ps((__m512)(sum), (__m512bh)(w), (__m512bh)INT((i) / 2))
enum { BFLOAT16_BYTES = 2 };
#elif defined(__aarch64__) && defined(__ARM_FEATURE_BF16_VECTOR_ARITHMETIC)
#define DOT2(sum, w, i) (vfloat)vbfdotq_f32((float32x4_t)(sum), (bfloat16x8_t)(w), (bfloat16x8_t)INT((i) / 2))
enum { BFLOAT16_BYTES = 2 };
#else
#define LOW(w) (vfloat)((w) << 16)
#define HIGH(w) (vfloat)((w) & (int32_t)0xFFFF0000)
#define DOT2(sum, w, i) multiply_add(multiply_add(sum, FLOAT(i), LOW(w)), FLOAT((i) + 1), HIGH(w))
enum { BFLOAT16_BYTES = 4 };
#endif
