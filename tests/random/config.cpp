// SPDX-License-Identifier: BSD-3-Clause
#include "random/config.h"

#include <functional>

namespace
{

using Change = std::function<void(Config &)>;

Change set(const char *name, const char *value)
{
    return [=](Config &c) { c.environment.emplace_back(name, value); };
}

Change strict(const char *mode)
{
    return [=](Config &c) { c.strict = mode; };
}

Change with(unsigned Mix::*member, unsigned value)
{
    return [=](Config &c) { c.mix.*member = value; };
}

Change kinds(std::vector<Kind> of)
{
    return [=](Config &c) { c.kinds = of; };
}

// More goes with each signal, where one takes long to come.
void many(Config &c)
{
    c.mix.puts = 64;
    c.mix.operations = 900;
}

void wide(Config &c)
{
    c.wide = true;
}

// Through slots: what only their owner's streams can move is left out.
void staged(Config &c)
{
    set("PEERHOP_PATH", "net")(c);
    set("PEERHOP_NET_PROVIDER", "tcp")(c);
    c.mix.staged = true;
    many(c);
    c.mix.gets = c.mix.copies = false;
}

void registered(Config &c)
{
    set("PEERHOP_PATH", "net")(c);
    set("PEERHOP_NET_PROVIDER", "tcp")(c);
    set("TEST_NET_HMEM", "driver")(c);
    c.hmem = true;
    many(c);
    c.mix.copies = false;
}

void over_tcp(Config &c)
{
    many(c);
    set("PEERHOP_PATH", "net")(c);
    set("PEERHOP_NET_PROVIDER", "tcp")(c);
}

void one_queue(Config &c)
{
    set("CUDA_DEVICE_MAX_CONNECTIONS", "1")(c);
    c.mix.branches = false;
}

Config make(const char *name, const char *what, std::vector<std::string> devices, int ranks,
            const std::vector<Change> &changes)
{
    Config c;
    c.name = name;
    c.what = what;
    c.gpus = devices[0] == "gpu";
    c.mix.branches = !c.gpus; // nobody promises that they run at once, which waits may need
    c.devices = devices;
    c.ranks = ranks;
    c.kinds = {Kind::DEVICE, Kind::DEVICE, Kind::VMM};
    for (const Change &change : changes)
        change(c);
    return c;
}

const char *const STRICT_RAW = "local,virt,raw,endpoint,allocated,narrow,disorder,again";
const char *const STRICT_KEYS = "local,virt,prov-key,endpoint,allocated,short,disorder,again";

std::vector<Config> on_host()
{
    const std::vector<std::string> host = {"host"};
    return {
        make("host-2", "host memory, two ranks", host, 2, {}),
        make("host-3", "host memory, three ranks", host, 3, {}),
        make("host-4", "host memory, four ranks", host, 4, {}),
        make("host-8", "host memory, eight ranks", host, 8, {}),
        make("host-groups", "host memory, mostly groups", host, 2, {with(&Mix::grouped, 95)}),
        make("host-lives", "host memory, ranks that end and come again", host, 3,
             {with(&Mix::reborn, 150)}),
        make("host-tcp-lives", "host memory over tcp, ranks that end and come again", host, 3,
             {over_tcp, with(&Mix::reborn, 150)}),
        make("host-tcp-2", "host memory over tcp", host, 2, {over_tcp}),
        make("host-tcp-4", "host memory over tcp, four ranks", host, 4, {over_tcp}),
        make("host-tcp-large", "host memory over tcp, mostly large messages in groups", host, 2,
             {over_tcp, with(&Mix::grouped, 95), with(&Mix::large, 3000),
              with(&Mix::operations, 100)}),
        make("host-rxm", "host memory over tcp;ofi_rxm", host, 2,
             {over_tcp, set("PEERHOP_NET_PROVIDER", "tcp;ofi_rxm")}),
        make("host-shm", "host memory over libfabric's shm", host, 2,
             {over_tcp, set("PEERHOP_NET_PROVIDER", "shm")}),
        make("host-rails", "host memory over two endpoints", host, 2,
             {over_tcp, set("PEERHOP_NET_RAILS", "2")}),
        make("host-parts", "host memory over tcp, parts of 16 KiB", host, 2,
             {over_tcp, set("PEERHOP_NET_PART", "16384")}),
        make("host-strict-raw", "host memory, a provider with raw keys and without order", host, 2,
             {over_tcp, strict(STRICT_RAW)}),
        make("host-strict-keys", "host memory, a provider with its own keys and without order",
             host, 3, {over_tcp, strict(STRICT_KEYS)}),
        make("host-late", "host memory, a provider that tells of immediate data late", host, 2,
             {over_tcp, strict("late"), with(&Mix::fresh, 50), with(&Mix::operations, 100),
              with(&Mix::repetitions, 2)}),
    };
}

std::vector<Config> on_standin()
{
    const std::vector<std::string> standin = {"standin"};
    return {
        make("standin-2", "CUDA IPC, two devices", standin, 2, {}),
        make("standin-4", "CUDA IPC, four ranks on four devices", standin, 4,
             {set("PEERHOP_STANDIN_DEVICES", "4")}),
        make("standin-4-on-2", "CUDA IPC, four ranks on two devices", standin, 4, {}),
        make("standin-2-on-1", "CUDA IPC, two ranks on one device", standin, 2,
             {set("PEERHOP_STANDIN_DEVICES", "1")}),
        make("standin-one-queue", "one device, one hardware queue", standin, 2,
             {set("PEERHOP_STANDIN_DEVICES", "1"), one_queue}),
        make("standin-ce", "all by the copy engine", standin, 2, {set("PEERHOP_METHOD", "ce")}),
        make("standin-copy-kernel", "all by the plain copy kernel", standin, 2,
             {set("PEERHOP_METHOD", "copy_kernel")}),
        make("standin-no-ll", "no message by ll", standin, 2, {set("PEERHOP_LL_MAX", "0")}),
        make("standin-wide", "wide lines up to 1 MiB", standin, 2,
             {wide, set("PEERHOP_LL_MAX", "1048576")}),
        make("standin-sm80", "kernels that are not launched early", standin, 2,
             {set("PEERHOP_STANDIN_PTX", "80")}),
        make("standin-wait-kernel", "waits are kernels", standin, 2,
             {set("PEERHOP_WAIT", "kernel")}),
        make("standin-wait-memory", "waits are memory operations", standin, 2,
             {set("PEERHOP_WAIT", "memory_operation")}),
        make("standin-bus", "devices on a bus", standin, 3, {set("PEERHOP_STANDIN_BUS", "1")}),
        make("standin-pools", "VMM and pool memory", standin, 2, {kinds({Kind::VMM, Kind::POOL})}),
        make("standin-host-memory", "host memory in device contexts, too", standin, 2,
             {kinds({Kind::HOST, Kind::DEVICE})}),
        make("standin-fresh", "fresh memory each round", standin, 2,
             {with(&Mix::fresh, 100), with(&Mix::repetitions, 2)}),
        make("standin-graphs", "all captured", standin, 2, {with(&Mix::captured, 100)}),
        make("standin-lives", "CUDA IPC, ranks that end and come again", standin, 2,
             {with(&Mix::reborn, 150)}),
        make("standin-net", "staged over tcp", standin, 2, {staged}),
        make("standin-net-4", "staged over tcp, four ranks", standin, 4, {staged}),
        make("standin-net-chunk", "staged over tcp, slots of 16 KiB", standin, 2,
             {staged, set("PEERHOP_NET_CHUNK", "16384")}),
        make("standin-net-strict", "staged, a provider without order", standin, 2,
             {staged, strict(STRICT_RAW)}),
        make("mixed", "a device and host memory, staged", {"standin", "host"}, 2, {staged}),
        make("mixed-chunk", "the same, slots of 16 KiB", {"standin", "host"}, 3,
             {staged, set("PEERHOP_NET_CHUNK", "16384")}),
        make("standin-registered", "registered device memory", standin, 2, {registered}),
        make("standin-registered-strict", "registered device memory, a provider without order",
             standin, 2, {registered, strict(STRICT_RAW)}),
    };
}

std::vector<Config> on_gpus()
{
    const std::vector<std::string> gpu = {"gpu"};
    return {
        make("gpu-2", "two ranks", gpu, 2, {}),
        make("gpu-4", "four ranks", gpu, 4, {many}),
        make("gpu-4-pools", "four ranks, VMM and pool memory", gpu, 4,
             {many, kinds({Kind::VMM, Kind::POOL})}),
        make("gpu-ce", "all by the copy engine", gpu, 2, {set("PEERHOP_METHOD", "ce")}),
        make("gpu-sm", "all by kernels", gpu, 2, {set("PEERHOP_METHOD", "sm")}),
        make("gpu-ll", "all that can by ll", gpu, 2, {set("PEERHOP_METHOD", "ll")}),
        make("gpu-no-ll", "no message by ll", gpu, 2, {set("PEERHOP_LL_MAX", "0")}),
        make("gpu-wide", "wide lines up to 1 MiB", gpu, 2,
             {wide, set("PEERHOP_LL_MAX", "1048576")}),
        make("gpu-graphs", "all captured", gpu, 2, {with(&Mix::captured, 100)}),
        make("gpu-eager", "none captured", gpu, 2, {with(&Mix::captured, 0)}),
        make("gpu-groups", "mostly groups", gpu, 2, {with(&Mix::grouped, 95)}),
        make("gpu-fresh", "fresh memory each round", gpu, 2,
             {many, with(&Mix::fresh, 100), with(&Mix::repetitions, 2),
              kinds({Kind::VMM, Kind::DEVICE})}),
        make("gpu-fresh-4", "fresh memory each round, four ranks", gpu, 4,
             {many, with(&Mix::fresh, 100), with(&Mix::repetitions, 2), kinds({Kind::VMM})}),
        make("gpu-host-memory", "host memory in device contexts, too", gpu, 2,
             {kinds({Kind::HOST, Kind::DEVICE})}),
        make("gpu-wait-memory", "waits are memory operations", gpu, 2,
             {set("PEERHOP_WAIT", "memory_operation")}),
        make("gpu-net", "staged over tcp", gpu, 2, {staged}),
    };
}

} // namespace

const std::vector<Config> &all_configs()
{
    static const std::vector<Config> all = [] {
        std::vector<Config> list;
        for (const auto &part : {on_host(), on_standin(), on_gpus()})
            list.insert(list.end(), part.begin(), part.end());
        return list;
    }();
    return all;
}
