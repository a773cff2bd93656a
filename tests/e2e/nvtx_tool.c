// SPDX-License-Identifier: BSD-3-Clause
// A tool for NVTX, as NVTX_INJECTION64_PATH names one: it appends a line to TEST_NVTX_FILE for each
// range of the domain "peerhop" that begins or ends, with its thread.
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <nvtx3/nvToolsExt.h>

static int file = -1;
static char ours; // its address is the domain

// One write, so that lines of threads and of ranks do not mix.
static void note(const char *what, const char *name, uint64_t payload)
{
    char line[160];
    const int length = snprintf(line, sizeof(line), "%d.%d %s %s %" PRIu64 "\n", getpid(), gettid(),
                                what, name, payload);
    if (write(file, line, (size_t)length) != length)
        abort();
}

static nvtxDomainHandle_t NVTX_API create_domain(const char *name)
{
    return strcmp(name, "peerhop") == 0 ? (nvtxDomainHandle_t)&ours : NULL;
}

static int NVTX_API push(nvtxDomainHandle_t domain, const nvtxEventAttributes_t *attributes)
{
    if ((char *)domain == &ours)
        note("begin", attributes->message.ascii, attributes->payload.ullValue);
    return 0;
}

static int NVTX_API pop(nvtxDomainHandle_t domain)
{
    if ((char *)domain == &ours)
        note("end", "-", 0);
    return 0;
}

__attribute__((visibility("default"))) int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get);

int InitializeInjectionNvtx2(NvtxGetExportTableFunc_t get)
{
    const NvtxExportTableCallbacks *callbacks = get(NVTX_ETID_CALLBACKS);
    const char *name = getenv("TEST_NVTX_FILE");
    NvtxFunctionTable table;
    unsigned size;

    if (!callbacks || !name ||
        !callbacks->GetModuleFunctionTable(NVTX_CB_MODULE_CORE2, &table, &size) ||
        size <= NVTX_CBID_CORE2_DomainRangePop)
        return 0;
    file = open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    *table[NVTX_CBID_CORE2_DomainCreateA] = (NvtxFunctionPointer)create_domain;
    *table[NVTX_CBID_CORE2_DomainRangePushEx] = (NvtxFunctionPointer)push;
    *table[NVTX_CBID_CORE2_DomainRangePop] = (NvtxFunctionPointer)pop;
    return file >= 0;
}
