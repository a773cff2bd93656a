# SPDX-License-Identifier: BSD-3-Clause
"""How things end: by signals, deaths, forks, exits in the middle, deadlines. Nothing hangs and nothing crashes."""
import gc
import os
import pickle
import re
import signal
import subprocess
import sys
import threading
import time
import unittest

import peerhop
import ranks

PROMPT_S = 0.2  # until Ctrl-C has ended a call


def other(context):
    return 1 - context.rank


def interrupted(call, after=0.3):
    """interrupted returns how long after a SIGINT, as of Ctrl-C, the call went on."""
    sent = []

    def send():
        sent.append(time.monotonic())
        os.kill(os.getpid(), signal.SIGINT)

    timer = threading.Timer(after, send)
    timer.start()
    try:
        call()
    except KeyboardInterrupt:
        return time.monotonic() - sent[0]
    raise AssertionError('the call has ended by itself')


def rank_interrupted_synchronize():
    with peerhop.Context() as context:
        channel = context.unbound(other(context))
        if context.rank == 0:
            came = bytearray(4)
            channel.recv(came)
            took = interrupted(context.synchronize)
            channel.send(b'go', stream=context.queue())
            context.synchronize()  # the queue goes on
            assert came == b'late', came
            sys.stdout.write(f'took {took:.3f};\n')
        else:
            channel.recv(go := bytearray(2), stream=(queue := context.queue()))
            queue.synchronize()
            channel.send(b'late')
            context.synchronize()
            assert go == b'go'


def rank_interrupted_exchange():
    context = peerhop.Context()
    buffer = context.alloc(100)
    took = interrupted(lambda: context.exchange(1, peer=1, buffer=buffer))
    begin = time.monotonic()
    context.close(timeout=5)
    assert time.monotonic() - begin < 3, 'the exchange went on'
    sys.stdout.write(f'took {took:.3f};\n')


def state_of(process):
    with open(f'/proc/{process}/stat', encoding='ascii', errors='replace') as stat:
        return stat.read().rpartition(')')[2].split()[0]


def rank_interrupted_release():
    context = peerhop.Context()
    if context.rank == 0:
        channel = context.exchange(1, peer=1, buffer=(buffer := context.alloc(100)))
        channel.wait()
        context.synchronize()
        process = context.peer(1).process
        while state_of(process) != 'T':
            time.sleep(0.001)
        release = context.release(buffer)
        assert not release.test('closed')
        took = interrupted(lambda: release.wait('closed', timeout=20))
        sys.stdout.write(f'took {took:.3f};\n')
        os._exit(0)
    channel = context.exchange(1, peer=0, buffer=context.alloc(100))
    channel.signal()
    context.synchronize()
    os.kill(os.getpid(), signal.SIGSTOP)


def rank_interrupted_close():
    context = peerhop.Context()
    channel = context.unbound(other(context))
    if context.rank == 1:
        time.sleep(20)
    channel.recv(bytearray(4))
    took = interrupted(context.close)
    assert context.closed
    sys.stdout.write(f'took {took:.3f};\n')


def rank_interrupted_creation():
    took = interrupted(lambda: peerhop.Context(rank=0, ranks=2, store='redis://192.0.2.1:6379', job='x'))
    sys.stdout.write(f'took {took:.3f};\n')


def rank_wait_for_killed():
    """The peer prints when it can be killed."""
    with peerhop.Context() as context:
        channel = context.unbound(other(context))
        if context.rank == 1:
            print('ready', flush=True)
            time.sleep(60)
        channel.recv(bytearray(4))
        print('waits', flush=True)
        try:
            context.synchronize(timeout=20)
            raise AssertionError('nobody has sent')
        except peerhop.PeerGone as error:
            assert error.name == 'PH_EPEER' and '1' in str(error), error
        assert channel.status == channel.ended == error_code(channel)
        assert context.peer(1).state == 'gone', context.peer(1)
        context.synchronize()  # told once
        try:
            channel.send(b'x')
            raise AssertionError('a send to nobody')
        except peerhop.PeerGone:
            print('told')


def error_code(channel):
    try:
        channel.check()
    except peerhop.Error as error:
        return error.code
    return 0


def rank_fork():
    with peerhop.Context() as context:
        channel = context.unbound(other(context))
        memory = memoryview(context.alloc(10))
        child = os.fork()
        if child == 0:
            for call in (lambda: channel.send(b'x'), lambda: context.alloc(5), lambda: context.unbound(0), lambda: context.rank,
                         context.synchronize, context.counters, lambda: context.abort('x')):
                try:
                    call()
                    os._exit(1)
                except peerhop.Forked:
                    pass
            memory[:1] = b'x'
            channel.close()
            context.close()
            del channel, memory
            gc.collect()
            sys.exit(7)  # through all that Python does at its exit
        assert os.waitpid(child, 0)[1] == 7 << 8
        assert memory[:1] == b'x'
        with context.group() as group:
            channel.send(b'parent', group=group)
            channel.recv(came := bytearray(6), group=group)
        context.synchronize()
        assert came == b'parent'


def rank_exit_without_close():
    context = peerhop.Context()
    channel = context.unbound(other(context))
    bound = context.exchange(5, peer=other(context), buffer=context.alloc(64))
    if context.rank == 0:
        bound.send()
        channel.send(b'the last word' * 10000)
        channel.recv(bytearray(2))  # who sends last hears of it before it leaves
        context.synchronize()
    else:
        bound.recv()
        channel.recv(came := bytearray(130000))
        channel.send(b'ok')
        context.synchronize()
        assert came == b'the last word' * 10000
        channel.recv(bytearray(1))  # nobody sends it: the end does not wait for it


def rank_exit_that_is_held():
    """The end waits for an operation of this rank's that a peer, who lives on, does not answer."""
    context = peerhop.Context()
    channel = context.unbound(other(context))
    if context.rank == 0:
        channel.recv(bytearray(1))
        return
    time.sleep(60)


def rank_exit_in_a_wait():
    """A thread is in a call when the program ends."""
    context = peerhop.Context()
    channel = context.unbound(other(context))
    channel.recv(bytearray(10))
    threading.Thread(target=context.synchronize, daemon=True).start()
    threading.Thread(target=lambda: context.unbound(other(context), op_id=100 + context.rank), daemon=True).start()
    time.sleep(0.2)
    print('ends', flush=True)


def rank_raises():
    context = peerhop.Context()
    channel = context.unbound(other(context))
    if context.rank == 0:
        channel.recv(bytearray(1))
        context.synchronize(timeout=20)
    raise LookupError('as it is meant')


def rank_raises_in_with():
    with peerhop.Context() as context:
        channel = context.unbound(other(context))
        if context.rank == 1:
            channel.recv(bytearray(1))
            raise LookupError('as it is meant')
        try:
            channel.recv(bytearray(1))
            context.synchronize(timeout=20)
            raise AssertionError('nobody has sent')
        except (peerhop.Broken, peerhop.PeerGone):
            print('told')


def rank_mismatch():
    with peerhop.Context() as context:
        channel = context.unbound(other(context))
        if context.rank == 0:
            channel.send(b'four')
            while not channel.ended:  # the receiver sees it
                time.sleep(0.001)
        else:
            channel.recv(bytearray(5))
        try:
            context.synchronize()
            channel.send(b'x')
            raise AssertionError('4 bytes are not 5')
        except peerhop.Mismatch as error:
            assert '4' in str(error) and '5' in str(error), error
        channel.close()
        other_end = context.unbound(other(context))  # a new channel
        with context.group() as group:
            other_end.send(b'ok', group=group)
            other_end.recv(bytearray(2), group=group)
        context.synchronize()


def rank_timeout():
    with peerhop.Context(timeout=30) as context:
        assert context.timeout == 30
        channel = context.unbound(other(context))
        channel.recv(came := bytearray(4))
        if context.rank == 1:
            context.synchronize()
            channel.send(b'back')
            context.synchronize()
            return
        for timeout, most in ((0.3, 2), (0, 0.2)):
            begin = time.monotonic()
            try:
                context.synchronize(timeout=timeout)
                raise AssertionError('nobody has sent')
            except TimeoutError as error:
                assert isinstance(error, peerhop.Timeout) and 'rank 1' in str(error), error
            assert timeout <= time.monotonic() - begin < most
        begin = time.monotonic()
        try:
            context.unbound(1, op_id=7, timeout=0)
            raise AssertionError('nobody came')
        except TimeoutError:
            assert time.monotonic() - begin < 2
        channel.send(b'sent', stream=(queue := context.queue()))
        queue.synchronize()
        context.synchronize()
        assert came == b'back'


def rank_abort():
    with peerhop.Context() as context:
        channel = context.unbound(other(context))
        channel.recv(bytearray(4))
        if context.rank == 0:
            timer = threading.Timer(0.3, lambda: context.abort('it has rained'))
            timer.start()
        try:
            context.synchronize(timeout=20)
            raise AssertionError('nobody has sent')
        except (peerhop.Aborted, peerhop.Broken) as error:
            assert isinstance(error, peerhop.Aborted if context.rank == 0 else peerhop.Broken), repr(error)


def rank_two_threads():
    """A queue is one thread's at a time; a context that is in use is not closed."""
    context = peerhop.Context()
    channel, barrier = context.unbound(other(context)), context.unbound(other(context), op_id=1)
    channel.recv(bytearray(4))
    thread = threading.Thread(target=context.synchronize)
    thread.start()
    time.sleep(0.1)
    for call in (lambda: channel.send(b'sent'), context.synchronize, context.close):
        try:
            call()
            raise AssertionError('another thread synchronizes')
        except peerhop.Busy:
            pass
    queue = context.queue()
    with context.group(stream=queue) as group:  # the peer has looked, too
        barrier.send(b'', group=group)
        barrier.recv(bytearray(0), group=group)
    queue.synchronize()
    channel.send(b'sent', stream=queue)
    queue.synchronize()
    thread.join()
    context.close()
    for call in (lambda: channel.send(b'sent'), lambda: channel.status, lambda: context.rank, lambda: context.unbound(0),
                 context.synchronize, queue.synchronize, lambda: context.alloc(1), context.__enter__):
        try:
            call()
            raise AssertionError('the context is closed')
        except peerhop.Error as error:
            assert error.name == 'EBADF', error
    context.close()
    channel.close()


def rank_release():
    with peerhop.Context() as context:
        buffer = memoryview(context.alloc(1000))
        channel = context.exchange(1, peer=other(context), buffer=buffer[:500])
        release = context.release(buffer[:100])
        release.wait(timeout=20)
        assert release.test() and release.test('revoked')
        for call in (lambda: channel.put(10, src=0), channel.send):
            try:
                call()
                raise AssertionError('the buffer is released')
            except peerhop.Stale:
                pass
        release.wait('closed')
        again = context.exchange(1, peer=other(context), buffer=buffer[:500])
        again.signal()
        again.wait()
        context.synchronize()


def rank_expel():
    """Of a rank that is stopped, and of one that is not."""
    context = peerhop.Context(settings={'PEERHOP_HEARTBEAT_MS': 50, 'PEERHOP_SUSPECT_MS': 300})
    channel = context.unbound(other(context))
    if context.rank == 1:
        time.sleep(60)
    for rank, kind in ((0, peerhop.Invalid), (1, peerhop.Busy)):
        try:
            context.expel(rank)
            raise AssertionError(f'rank {rank} is expelled')
        except kind:
            pass
    os.kill(context.peer(1).process, signal.SIGSTOP)
    while context.peer(1).state != 'suspect':
        time.sleep(0.01)
    context.expel(1)
    assert context.peer(1).state == 'expelled', context.peer(1)
    assert channel.ended
    sys.stdout.write('expelled\n')
    sys.stdout.flush()
    os._exit(0)


def rank_alone():
    """What a channel, a message and a view have stays as long as they need it, and no longer."""
    with peerhop.Context() as context:
        channel = context.unbound(other(context))
        data = bytearray(100)
        channel.recv(data)
        try:
            data.clear()
            raise AssertionError('the message needs it')
        except BufferError:
            pass
        channel.send(bytes(100), stream=(queue := context.queue()))
        queue.synchronize()
        context.synchronize()
        data.clear()
        memory = context.alloc(4096)
        count = sys.getrefcount(memory)
        bound = context.exchange(2, peer=other(context), buffer=memory)
        assert sys.getrefcount(memory) == count + 1
        bound.close()
        assert sys.getrefcount(memory) == count
        view = memoryview(memory)
        del memory
    view[:] = b'x' * 4096  # the context has ended, and the memory has not
    assert bytes(view[-1:]) == b'x'


def rank_flood():
    """Messages that nobody synchronizes: their buffers go when the queue has come past them."""
    with peerhop.Context() as context:
        channel = context.unbound(other(context))
        held = []

        class Tracked(bytearray):
            def __del__(self):
                held.pop()

        def a_round():
            with context.group() as group:
                for call in (channel.send, channel.recv):
                    held.append(None)
                    call(Tracked(64), group=group)

        for _ in range(1000):
            a_round()
        # Each call on the queue lets go of what is over; those on a channel with itself wait for nobody.
        own = context.unbound(context.rank)
        end = time.monotonic() + 30
        while len(held) > 300:
            assert time.monotonic() < end, f'of 2000 buffers {len(held)} are held'
            time.sleep(0.01)
            with context.group() as group:
                own.send(b'x', group=group)
                own.recv(bytearray(1), group=group)
        context.synchronize()
        assert not held, held


class Ends(ranks.Ranks):
    def check_prompt(self, out):
        took = [float(seconds) for seconds in re.findall('took ([0-9.]+);', out)]
        self.assertTrue(took, out)
        for seconds in took:
            self.assertLess(seconds, PROMPT_S * float(os.environ.get('TEST_TIME_FACTOR', '1')))

    def test_interrupt_of_synchronize(self):
        self.check_prompt(self.run_ranks('rank_interrupted_synchronize'))

    def test_interrupt_of_exchange(self):
        out, _ = self.finish(self.start_rank('rank_interrupted_exchange', 0, self.folder()))
        self.check_prompt(out)

    def test_interrupt_of_release(self):
        folder = self.folder()
        process, stopped = (self.start_rank('rank_interrupted_release', rank, folder) for rank in range(2))
        self.check_prompt(self.finish(process)[0])
        self.assertIsNone(stopped.poll())

    def test_interrupt_of_close(self):
        folder = self.folder()
        process, _ = (self.start_rank('rank_interrupted_close', rank, folder) for rank in range(2))
        begin = time.monotonic()
        self.check_prompt(self.finish(process)[0])
        self.assertLess(time.monotonic() - begin, 10)

    def test_interrupt_of_creation(self):
        self.check_prompt(self.finish(self.start_rank('rank_interrupted_creation', 0, self.folder()))[0])

    def test_kill_of_a_peer(self):
        folder = self.folder()
        survivor, killed = (self.start_rank('rank_wait_for_killed', rank, folder) for rank in range(2))
        self.assertEqual('ready\n', killed.stdout.readline())
        self.assertEqual('waits\n', survivor.stdout.readline())
        killed.kill()
        self.assertIn('told', self.finish(survivor)[0])

    def test_fork(self):
        self.run_ranks('rank_fork')

    def test_exit_without_close(self):
        folder = self.folder()
        begin = time.monotonic()
        for process in [self.start_rank('rank_exit_without_close', rank, folder) for rank in range(2)]:
            self.assertEqual(('', ''), self.finish(process))
        self.assertLess(time.monotonic() - begin, 10)
        self.assertEqual([], os.listdir(folder))  # both have left the job

    def test_exit_that_is_held(self):
        folder = self.folder()
        process, _ = (self.start_rank('rank_exit_that_is_held', rank, folder) for rank in range(2))
        begin = time.monotonic()
        self.assertIn('peerhop.errors.Timeout: ETIMEDOUT: ', self.finish(process)[1])
        self.assertLess(time.monotonic() - begin, 20)

    def test_exit_in_a_wait(self):
        folder = self.folder()
        begin = time.monotonic()
        for process in [self.start_rank('rank_exit_in_a_wait', rank, folder) for rank in range(2)]:
            self.assertEqual('ends\n', self.finish(process)[0])
        self.assertLess(time.monotonic() - begin, 15)
        self.assertEqual([], os.listdir(folder))

    def test_exception_ends_the_program(self):
        folder = self.folder()
        waits, raises = (self.start_rank('rank_raises', rank, folder) for rank in range(2))
        self.assertIn('LookupError', self.finish(raises, 1)[1])
        self.assertRegex(self.finish(waits, 1)[1], 'peerhop.errors.(Broken|PeerGone)')

    def test_exception_leaves_with(self):
        folder = self.folder()
        waits, raises = (self.start_rank('rank_raises_in_with', rank, folder) for rank in range(2))
        self.assertIn('told', self.finish(waits)[0])
        self.assertIn('LookupError', self.finish(raises, 1)[1])

    def test_mismatch(self):
        self.run_ranks('rank_mismatch')

    def test_timeout(self):
        self.run_ranks('rank_timeout')

    def test_abort(self):
        self.run_ranks('rank_abort')

    def test_two_threads(self):
        self.run_ranks('rank_two_threads')

    def test_release(self):
        self.run_ranks('rank_release')

    def test_expel(self):
        folder = self.folder()
        process, _ = (self.start_rank('rank_expel', rank, folder) for rank in range(2))
        self.assertEqual('expelled\n', self.finish(process)[0])

    def test_what_is_held(self):
        self.run_ranks('rank_alone')

    def test_flood(self):
        self.run_ranks('rank_flood')


class Errors(unittest.TestCase):
    def test_every_code_has_a_class(self):
        header = os.path.join(os.environ['TEST_SOURCE'], 'include/peerhop/error.h')
        with open(header, encoding='ascii') as text:
            codes = [line.split('(')[1].split(',')[:2] for line in text if line.startswith('    X(')]
        self.assertGreater(len(codes), 10)
        for name, code in codes:
            error = peerhop.errors.make(int(code), 'why')
            self.assertIs(type(error), getattr(peerhop, type(error).__name__))
            self.assertIsNot(type(error), peerhop.Error)
            self.assertEqual((f'PH_E{name}', int(code), 'why'), (error.name, error.code, error.strerror))
            self.assertEqual(f'PH_E{name}: why', str(error))
            self.assertEqual(str(error), str(pickle.loads(pickle.dumps(error))))

    def test_codes_of_the_system(self):
        import errno
        for code, kind, builtin in ((errno.ETIMEDOUT, peerhop.Timeout, TimeoutError), (errno.EINVAL, peerhop.Invalid, ValueError),
                                    (errno.ESTALE, peerhop.Stale, OSError), (errno.EMFILE, peerhop.Error, OSError)):
            error = peerhop.errors.make(-code, 'why')
            self.assertIs(type(error), kind)
            self.assertIsInstance(error, builtin)
            self.assertEqual((-code, code, errno.errorcode[code]), (error.code, error.errno, error.name))

    def test_a_parameter_out_of_range(self):
        with self.assertRaisesRegex(peerhop.Invalid, 'rank 5 is not below'):
            peerhop.Context(rank=5, ranks=2, store='file:/dev/shm/none', job='x')
        with self.assertRaisesRegex(TypeError, "Context has no argument 'rnak'|unexpected keyword"):
            peerhop.Context(rnak=5)
        with self.assertRaisesRegex(TypeError, 'rank is a number'):
            peerhop.Context(rank='zero', ranks=2)
        with self.assertRaisesRegex(ValueError, 'timeout is at least 0'):
            peerhop.Context(rank=0, ranks=1, timeout=-1)

    def test_interpreter_exit_is_clean(self):
        done = subprocess.run([sys.executable, '-c', 'import peerhop'], capture_output=True, text=True, check=True)
        self.assertEqual('', done.stdout + done.stderr)


if __name__ == '__main__':
    ranks.main(globals())
