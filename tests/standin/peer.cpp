// SPDX-License-Identifier: BSD-3-Clause
#include "standin/peer.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>

#include "standin/driver_under_test.h"

namespace
{

struct Request {
    Order order;
    uint64_t a, b;
    uint8_t bytes[64];
};

bool send_with(int socket, const void *data, size_t size, int fd)
{
    iovec part = {const_cast<void *>(data), size};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    if (fd >= 0) {
        message.msg_control = control;
        message.msg_controllen = sizeof(control);
        cmsghdr *header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &fd, sizeof(fd));
    }
    return sendmsg(socket, &message, MSG_NOSIGNAL) == static_cast<ssize_t>(size);
}

bool receive_with(int socket, void *data, size_t size, int *fd)
{
    iovec part = {data, size};
    alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))];
    msghdr message = {};
    message.msg_iov = &part;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
    *fd = -1;
    if (recvmsg(socket, &message, MSG_CMSG_CLOEXEC) != static_cast<ssize_t>(size))
        return false;
    const cmsghdr *header = CMSG_FIRSTHDR(&message);
    if (header && header->cmsg_type == SCM_RIGHTS)
        memcpy(fd, CMSG_DATA(header), sizeof(*fd));
    return true;
}

// The other process.
class Servant
{
  public:
    Servant(int socket, int device) : socket_(socket), device_(device)
    {
    }

    int serve()
    {
        std::string why;
        d_ = driver_under_test(&why);
        CUcontext context;
        if (!d_ || d_->cuDevicePrimaryCtxRetain(&context, device_) ||
            d_->cuCtxSetCurrent(context) || d_->cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING))
            return 1;
        Request request;
        int fd;
        while (receive_with(socket_, &request, sizeof(request), &fd)) {
            Reply reply = {};
            int out = -1;
            reply.result = obey(request, fd, &reply, &out);
            bool sent = send_with(socket_, &reply, sizeof(reply), out);
            for (int used : {fd, out}) {
                if (used >= 0)
                    close(used);
            }
            if (!sent)
                return 1;
        }
        return 0;
    }

  private:
    CUresult obey(const Request &request, int fd, Reply *reply, int *out)
    {
        CUdeviceptr address = request.a;
        CUresult result = CUDA_ERROR_NOT_SUPPORTED;
        CUipcMemHandle handle;
        switch (request.order) {
        case Order::ALLOC:
            result = d_->cuMemAlloc_v2(&address, request.a);
            break;
        case Order::FREE:
            result = d_->cuMemFree_v2(address);
            break;
        case Order::HANDLE:
            result = d_->cuIpcGetMemHandle(&handle, address);
            memcpy(reply->bytes, &handle, sizeof(handle));
            break;
        case Order::OPEN:
            memcpy(&handle, request.bytes, sizeof(handle));
            result =
                d_->cuIpcOpenMemHandle_v2(&address, handle, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
            break;
        case Order::CLOSE:
            result = d_->cuIpcCloseMemHandle(address);
            break;
        case Order::PUT:
            result = d_->cuMemcpyHtoDAsync_v2(address, &request.b, 8, stream_);
            return result ? result : d_->cuStreamSynchronize(stream_);
        case Order::GET:
            result = d_->cuMemcpyDtoHAsync_v2(&reply->value, address, 8, stream_);
            return result ? result : d_->cuStreamSynchronize(stream_);
        case Order::VMM_CREATE:
            result = vmm_create(request.a, &address, out);
            break;
        case Order::VMM_OPEN:
            result = vmm_open(request.a, fd, &address);
            break;
        case Order::POOL:
            result = pool(request.a, &address, reply, out);
            break;
        case Order::UUID:
            return d_->cuDeviceGetUuid_v2(reinterpret_cast<CUuuid *>(reply->bytes),
                                          static_cast<CUdevice>(request.a));
        case Order::POOL_FREE:
            result = d_->cuMemFreeAsync(address, stream_);
            return result ? result : d_->cuStreamSynchronize(stream_);
        }
        reply->value = address;
        return result;
    }

    CUmemAccessDesc access() const
    {
        CUmemAccessDesc descriptor = {};
        descriptor.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        descriptor.location.id = device_;
        descriptor.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        return descriptor;
    }

    CUresult map(CUmemGenericAllocationHandle handle, size_t size, CUdeviceptr *address)
    {
        CUmemAccessDesc descriptor = access();
        CUresult result = d_->cuMemAddressReserve(address, size, 0, 0, 0);
        result = result ? result : d_->cuMemMap(*address, size, 0, handle, 0);
        return result ? result : d_->cuMemSetAccess(*address, size, &descriptor, 1);
    }

    CUresult vmm_create(size_t size, CUdeviceptr *address, int *out)
    {
        CUmemAllocationProp prop = {};
        prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
        prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        prop.location.id = device_;
        prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        CUmemGenericAllocationHandle handle;
        CUresult result = d_->cuMemCreate(&handle, size, &prop, 0);
        result = result ? result : map(handle, size, address);
        return result ? result
                      : d_->cuMemExportToShareableHandle(
                            out, handle, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
    }

    CUresult vmm_open(size_t size, int fd, CUdeviceptr *address)
    {
        CUmemGenericAllocationHandle handle;
        CUresult result = d_->cuMemImportFromShareableHandle(
            &handle, reinterpret_cast<void *>(static_cast<intptr_t>(fd)),
            CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
        result = result ? result : map(handle, size, address);
        return result ? result : d_->cuMemRelease(handle); // the mapping keeps it
    }

    CUresult pool(size_t size, CUdeviceptr *address, Reply *reply, int *out)
    {
        CUmemPoolProps props = {};
        props.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
        props.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
        props.location.id = device_;
        props.handleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
        CUmemPoolPtrExportData data = {};
        CUresult result = pool_ ? CUDA_SUCCESS : d_->cuMemPoolCreate(&pool_, &props);
        result = result ? result : d_->cuMemAllocFromPoolAsync(address, size, pool_, stream_);
        result = result ? result : d_->cuStreamSynchronize(stream_);
        result = result ? result
                        : d_->cuMemPoolExportToShareableHandle(
                              out, pool_, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 0);
        result = result ? result : d_->cuMemPoolExportPointer(&data, *address);
        memcpy(reply->bytes, &data, sizeof(data));
        return result;
    }

    int socket_, device_;
    const phi_driver *d_ = nullptr;
    CUstream stream_ = nullptr;
    CUmemoryPool pool_ = nullptr;
};

} // namespace

extern "C" int test_child_main(int argc, char **argv)
{
    if (argc != 2)
        return 2;
    return Servant(atoi(argv[0]), atoi(argv[1])).serve();
}

Peer::Peer(int device, const std::vector<std::string> &variables)
{
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair))
        abort();
    fflush(nullptr);
    std::string fd = std::to_string(pair[1]), ordinal = std::to_string(device);
    // The path, not the link: memory checkers start their own program by the link.
    std::string self = std::filesystem::read_symlink("/proc/self/exe");
    pid_ = fork();
    if (pid_ == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        fcntl(pair[1], F_SETFD, 0);
        for (const std::string &variable : variables)
            putenv(strdup(variable.c_str()));
        execl(self.c_str(), "peer", "--child", fd.c_str(), ordinal.c_str(),
              static_cast<char *>(nullptr));
        _exit(127);
    }
    close(pair[1]);
    socket_ = pair[0];
}

Peer::~Peer()
{
    close(socket_);
    if (pid_ > 0)
        waitpid(pid_, nullptr, 0);
}

void Peer::kill()
{
    ::kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
    pid_ = -1;
}

Reply Peer::call(Order order, uint64_t a, uint64_t b, const void *bytes, int fd, int *received)
{
    Request request = {order, a, b, {}};
    Reply reply = {};
    reply.result = CUDA_ERROR_UNKNOWN;
    if (bytes)
        memcpy(request.bytes, bytes, sizeof(request.bytes));
    int got = -1;
    if (send_with(socket_, &request, sizeof(request), fd))
        receive_with(socket_, &reply, sizeof(reply), &got);
    if (received)
        *received = got;
    else if (got >= 0)
        close(got);
    return reply;
}
