// SPDX-License-Identifier: BSD-3-Clause
// Another process with the same driver: it does what it is told through a socket, and answers.
#ifndef TESTS_STANDIN_PEER_H
#define TESTS_STANDIN_PEER_H

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

enum class Order : uint32_t {
    ALLOC,      // a: size -> value: address
    FREE,       // a: address
    HANDLE,     // a: address -> bytes
    OPEN,       // bytes -> value: address
    CLOSE,      // a: address
    PUT,        // a: address, b: eight bytes to store there
    GET,        // a: address -> value: the eight bytes there
    VMM_CREATE, // a: size -> value: address, fd
    VMM_OPEN,   // a: size, fd -> value: address
    POOL,       // a: size -> value: address, bytes: the pointer's, fd: the pool's
    POOL_FREE,  // a: address
    UUID,       // a: ordinal -> bytes: 16 of them
};

struct Reply {
    int32_t result; // CUresult
    uint64_t value;
    uint8_t bytes[64];
};

class Peer
{
  public:
    // variables: "NAME=value", added to its environment. device: its current one.
    explicit Peer(int device = 0, const std::vector<std::string> &variables = {});
    ~Peer(); // ends it

    // fd: sent along where it is not -1. received: a descriptor that came back, owned by the
    // caller.
    Reply call(Order order, uint64_t a = 0, uint64_t b = 0, const void *bytes = nullptr,
               int fd = -1, int *received = nullptr);
    void kill(); // at once, and waited for

  private:
    pid_t pid_ = -1;
    int socket_ = -1;
};

#endif
