# SPDX-License-Identifier: BSD-3-Clause
"""The schedules of torch.distributed.pipelining, as they are, on Peerhop: loss and gradients of the model that is not split."""
import os
import sys
import unittest
from datetime import timedelta

import torch_ranks

torch_ranks.interpreter()

import torch  # pylint: disable=wrong-import-position
import torch.distributed as dist  # pylint: disable=wrong-import-position
from torch.distributed import pipelining  # pylint: disable=wrong-import-position
from torch.distributed.pipelining import schedules  # pylint: disable=wrong-import-position

import peerhop.torch  # pylint: disable=wrong-import-position

WIDTH, MICROBATCHES, BATCH, STEPS = 16, 8, 16, 2
RANKS = int(os.environ.get('TEST_PIPELINE_RANKS', '2'))


def layers(count):
    torch.manual_seed(1)
    return [torch.nn.Sequential(torch.nn.Linear(WIDTH, WIDTH), torch.nn.Tanh()).double() for _ in range(count)]


def sum_of_squares(output, target):
    return ((output - target) ** 2).sum()


def whole(count, inputs, target):
    """whole returns the gradients of all layers, and the output."""
    model = torch.nn.Sequential(*layers(count))
    for _ in range(STEPS):
        output = model(inputs)
        sum_of_squares(output, target).backward()
    return [[parameter.grad for parameter in layer.parameters()] for layer in model], output.detach()


def run(rank, name):
    per_rank = 1 if issubclass(getattr(schedules, name), schedules.PipelineScheduleSingle) else 2
    count = per_rank * RANKS
    torch.manual_seed(2)
    inputs, target = torch.randn(BATCH, WIDTH).double(), torch.randn(BATCH, WIDTH).double()
    mine = [rank + i * RANKS for i in range(per_rank)]
    own = layers(count)
    stages = [pipelining.PipelineStage(own[i], i, count, torch.device('cpu')) for i in mine]
    schedule = getattr(schedules, name)(stages[0] if per_rank == 1 else stages, MICROBATCHES, loss_fn=sum_of_squares,
                                        scale_grads=False)
    for _ in range(STEPS):
        output = schedule.step(*([inputs] if 0 in mine else []), **({'target': target} if count - 1 in mine else {}))
    wanted, wanted_output = whole(count, inputs, target)
    for i in mine:
        for parameter, gradient in zip(own[i].parameters(), wanted[i]):
            torch.testing.assert_close(parameter.grad, gradient)
    if count - 1 in mine:
        torch.testing.assert_close(output, wanted_output)


def schedule_program(backend):
    def program(rank):
        torch.set_num_threads(1)
        dist.init_process_group(backend, init_method=f'file://{os.environ["TEST_FOLDER"]}/store', rank=rank, world_size=RANKS,
                                timeout=timedelta(seconds=60))
        if backend == 'gloo':
            peerhop.torch.enable(devices=('cpu',))
        for name in ('ScheduleGPipe', 'Schedule1F1B', 'ScheduleInterleaved1F1B', 'ScheduleLoopedBFS',
                     'ScheduleInterleavedZeroBubble'):
            print(name, file=sys.stderr)
            run(rank, name)
        moved = [way['sent'][0] + way['received'][0] for way in next(iter(peerhop.torch.report().values()))['cpu'].values()]
        assert sum(moved) >= 5 * STEPS * MICROBATCHES, moved
        dist.destroy_process_group()
    return program


class Pipelining(torch_ranks.Ranks):
    def test_schedules_of_a_peerhop_group(self):
        self.run_ranks(schedule_program('peerhop'), RANKS)

    def test_schedules_of_a_gloo_group(self):
        self.run_ranks(schedule_program('gloo'), RANKS)


if __name__ == '__main__':
    unittest.main()
