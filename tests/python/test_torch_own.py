# SPDX-License-Identifier: BSD-3-Clause
"""torch's own tests of point-to-point messages, from its package, unmodified: gloo groups with peerhop.torch.enable()."""
import os
import sys
import tempfile
import unittest

import torch_ranks

torch_ranks.interpreter()
os.environ.update(BACKEND='gloo', WORLD_SIZE='3')
if 'TEMP_DIR' not in os.environ:  # the first process, and none that it has started
    _folder = tempfile.TemporaryDirectory(prefix='peerhop-test-')
    os.environ['TEMP_DIR'] = _folder.name

try:
    from torch.testing._internal.distributed import distributed_test
except ImportError as error:
    print(f'torch has its tests, and not what they need: {error}')
    sys.exit(77)

import peerhop.torch  # pylint: disable=wrong-import-position

NAMES = ('test_send_recv', 'test_isend', 'test_irecv', 'test_send_recv_with_tag', 'test_batch_isend_irecv_gloo',
         'test_batch_isend_irecv_gloo_tags')

peerhop.torch.enable(devices=('cpu',))  # each rank imports this file


class Own(distributed_test.TestDistBackend, distributed_test.DistributedTest._DistTestBase):
    def setUp(self):
        super().setUp()
        self._spawn_processes()

    def run_test(self, test_name, pipe):
        super().run_test(test_name, pipe)
        told = peerhop.torch.report()
        assert any(way['sent'][0] + way['received'][0] for group in told.values() for way in group['cpu'].values()), told
        assert not any('others' in group for group in told.values()), told


for _name in [name for name in dir(Own) if name.startswith('test_') and name not in NAMES and name != 'test_ddp_has_finalized']:
    setattr(Own, _name, None)


if __name__ == '__main__':
    unittest.main(argv=[sys.argv[0], '-v'] + [f'Own.{name}' for name in NAMES])
