// SPDX-License-Identifier: BSD-3-Clause
// What the two halves of the strict libfabric know of each other, and what a test may tell it.
#ifndef TESTS_CONFORMANCE_NET_STRICT_H
#define TESTS_CONFORMANCE_NET_STRICT_H

#include <stdint.h>

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_rma.h>

#define EXPORT __attribute__((visibility("default")))

enum { GREETING = 8 }; // bytes of a message that is one

// What tests find by dlsym.
EXPORT int strict_refused(void);       // how many calls were refused since the start
EXPORT int strict_mapped(void);        // raw keys that are mapped
EXPORT int strict_read(void);          // endpoints that have read of themselves since the last call
EXPORT void strict_unmappable(int on); // no raw key can be mapped
EXPORT void strict_fail_next(int n);   // the n-th RMA operation from now on ends with an error
EXPORT void strict_deaf(int count);    // so many queues, made last, do not look at what comes
// Of so many queues, made last, only the thread that calls this is told what has come, and before
// that of an error, until this is called with 0. To it they are never deaf.
EXPORT void strict_keep(int count);
EXPORT void strict_stray(int count); // so many queues, made last, tell of an error of no operation
// Greetings of so many endpoints, made last, are to be tried again, until this is called with 0.
EXPORT void strict_unwelcome(int count);
EXPORT void strict_astray(int on); // greetings are taken, and nothing becomes of them
// The how manieth immediate data, and message, that comes from now on is not told of; 0: none.
EXPORT void strict_lose(int immediate, int message);
EXPORT void strict_late(int on);        // immediate data is told of when this is called with 0
EXPORT void strict_silence(int silent); // operations are taken, and nothing becomes of them

int demands(const char *word); // whether TEST_NET_STRICT has it
// The library is told that an operation is over.
void strict_landed(const void *context);

typedef ssize_t (*rma_fn)(struct fid_ep *, const struct fi_msg_rma *, uint64_t);
int strict_writes(rma_fn fn); // whether it is the provider's call for writes

// ---- net_disorder.c

// disorder_rma stands for the provider's call, all descriptors and keys being the provider's.
ssize_t disorder_rma(rma_fn fn, struct fid_ep *ep, struct fid_cq *cq,
                     const struct fi_msg_rma *message, uint64_t flags);
// disorder_refuses: whether a call of this moment is to be tried again.
int disorder_refuses(void);
int disorder_cq_open(struct fid_domain *domain, struct fi_cq_attr *attr, struct fid_cq **cq,
                     void *context, __typeof__(((struct fi_ops_domain *)0)->cq_open) real);
int disorder_trywait(struct fid_fabric *fabric, struct fid **fids, int count,
                     __typeof__(((struct fi_ops_fabric *)0)->trywait) real);
void disorder_forget_ep(struct fid_ep *ep);

#endif
