// CRC32C, with which OpenAI's files are checked, for a Python whose google-crc32c has no C of its own.
#if defined(__ARM_FEATURE_CRC32)
#include <arm_acle.h>
#endif

uint32_t crc32c(const uint8_t *bytes, int64_t n) {
  uint32_t crc = ~0u;
#if defined(__SSE4_2__) && defined(__x86_64__)
  for (uint64_t part; n >= 8; bytes += 8, n -= 8) memcpy(&part, bytes, 8), crc = _mm_crc32_u64(crc, part);
  for (; n > 0; bytes++, n--) crc = _mm_crc32_u8(crc, *bytes);
#elif defined(__ARM_FEATURE_CRC32)
  for (uint64_t part; n >= 8; bytes += 8, n -= 8) memcpy(&part, bytes, 8), crc = __crc32cd(crc, part);
  for (; n > 0; bytes++, n--) crc = __crc32cb(crc, *bytes);
#else
  uint32_t table[256];  // what a byte does to the sum: eight steps of its bits
  for (uint32_t byte = 0; byte < 256; byte++) {
    table[byte] = byte;
    for (int bit = 0; bit < 8; bit++) table[byte] = table[byte] >> 1 ^ (table[byte] & 1 ? 0x82F63B78 : 0);
  }
  for (; n > 0; bytes++, n--) crc = crc >> 8 ^ table[(crc ^ *bytes) & 255];
#endif
  return ~crc;
}
