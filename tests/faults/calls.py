#!/usr/bin/env python3
# SPDX-License-Identifier: BSD-3-Clause
"""Fails where the library imports a call that the sweep cannot make fail, and that is not among those that need not."""
import re
import subprocess
import sys

# They compute, or hold a lock, and ask nobody for anything.
COMPUTE = """
    _ITM_deregisterTMCloneTable _ITM_registerTMCloneTable __assert_fail __ctype_tolower_loc __ctype_toupper_loc
    __cxa_finalize __environ
    __errno_location __gmon_start__ __isoc99_sscanf __sched_cpucount __stack_chk_fail abort dlerror environ
    explicit_bzero gai_strerror gmtime_r inet_ntop inet_pton memchr memcmp memcpy memmove memrchr memset pthread_self sigfillset snprintf stderr
    strchr strcmp strcspn strerror strerrordesc_np strftime strlen strncasecmp strncmp strncpy strnlen strpbrk strrchr strspn strstr strtol strtoll
    strtoul strtoull vsnprintf
    pthread_cond_broadcast pthread_cond_destroy pthread_cond_init pthread_cond_signal pthread_cond_timedwait
    pthread_cond_wait pthread_condattr_destroy pthread_condattr_init pthread_condattr_setclock pthread_mutex_destroy
    pthread_mutex_init pthread_mutex_lock pthread_mutex_trylock pthread_mutex_unlock pthread_once
"""
# Nothing depends on whether they succeed, or they always do: what ends something, asks for a number, or is advice.
NO_MATTER = """
    __register_atfork clock_gettime close closedir dlclose fclose free freeaddrinfo freeifaddrs getenv geteuid getnameinfo getpid
    getrlimit64 getsockname getuid ioctl prctl pthread_detach pthread_join pthread_setaffinity_np pthread_setname_np pthread_sigmask
    pthread_timedjoin_np sched_getaffinity sched_yield setvbuf shutdown sysconf time unlink
"""
# Text to standard error, and lines of files (and of folders) that fopen, fdopen and opendir have opened.
TEXT = 'fgetc fgets fprintf fputs fread fwrite readdir64 realpath'
# hiredis: what it says of the store fails by the replies (FAULT_STORE_REPLY).
STORE = """
    freeReplyObject redisFormatCommandArgv redisFreeCommand redisReaderCreate redisReaderFeed redisReaderFree
    redisReaderGetReply
"""


def without_faults(imports, header):
    libc = header[header.index('#define FAULT_LIBC_MAP'):header.index('#define FAULT_FABRIC_MAP')]
    known = set(re.findall(r'X\((\w+),', libc)) | set(' '.join((COMPUTE, NO_MATTER, TEXT, STORE)).split())
    return sorted(imports - known)


def main():
    library, header = sys.argv[1], open(sys.argv[2], encoding='utf-8').read()
    lines = subprocess.run(['nm', '-D', '--undefined-only', library], check=True, capture_output=True, text=True).stdout
    imports = {line.split()[-1].split('@')[0] for line in lines.splitlines()}
    if without_faults({'read', 'free', 'mknod'}, header) != ['mknod'] or 'memfd_create' not in imports:
        sys.exit('this test finds nothing')
    missing = without_faults(imports, header)
    if missing:
        sys.exit(f'called by the library, and met by no fault: {" ".join(missing)}')
    print(f'{len(imports)} imports')


if __name__ == '__main__':
    main()
