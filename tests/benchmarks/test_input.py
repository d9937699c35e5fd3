# SPDX-License-Identifier: Apache-2.0
from benchmarks import input as input_benchmark
from benchmarks import results


def test_benchmark_prints_a_ratio_for_each_part(fake_cifar10, monkeypatch, capsys, tmp_path):
  # 300 images, 100 clients: three each.
  for name, value in {'CLIENTS': 2, 'STEPS': 2, 'BATCH': 3, 'TURNS': 1}.items():
    monkeypatch.setattr(input_benchmark, name, value)
  monkeypatch.setattr(results, 'FOLDER', tmp_path)
  monkeypatch.setattr(input_benchmark.runtime, 'set_in_process_context', lambda: None)
  input_benchmark.main()
  lines = capsys.readouterr().out.splitlines()
  assert '2 clients x 2 steps x 3 images' in lines[1]
  assert [line.split('%')[0].split()[-1] for line in lines[3:4]] == ['100.0']
  assert len(lines) == 8
  assert (tmp_path / 'input.json').exists()
