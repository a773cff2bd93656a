// SPDX-License-Identifier: BSD-3-Clause
// Numbers that every rank draws alike.
#ifndef TESTS_RANDOM_DICE_H
#define TESTS_RANDOM_DICE_H

#include <cstddef>
#include <cstdint>

inline uint64_t mix(uint64_t a, uint64_t b = 0, uint64_t c = 0)
{
    uint64_t x = a * 0x9e3779b97f4a7c15u + b * 0xd1342543de82ef95u + c * 0x2545f4914f6cdd1du +
                 0x632be59bd9b4e019u;
    for (int i = 0; i < 2; i++) {
        x ^= x >> 32;
        x *= 0xd6e8feb86659fd93u;
    }
    return x ^ x >> 32;
}

class Dice
{
  public:
    explicit Dice(uint64_t seed) : state_(seed)
    {
    }
    uint64_t next()
    {
        return mix(state_ += 0x9e3779b97f4a7c15u);
    }
    size_t below(size_t n)
    {
        return n == 0 ? 0 : static_cast<size_t>((next() >> 32) * n >> 32);
    }
    size_t between(size_t low, size_t high)
    {
        return low + below(high - low + 1);
    }
    bool chance(size_t percent)
    {
        return below(100) < percent;
    }
    // As many small numbers as large ones, between powers of two.
    size_t by_size(size_t low, size_t high)
    {
        const unsigned a = 63u - static_cast<unsigned>(__builtin_clzll(low)),
                       b = 63u - static_cast<unsigned>(__builtin_clzll(high));
        const size_t power = static_cast<size_t>(1) << between(a, b > a ? b - 1 : b),
                     n = power + below(power + 1);
        return n < low ? low : n > high ? high : n;
    }

  private:
    uint64_t state_;
};

#endif
