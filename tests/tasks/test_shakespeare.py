import numpy as np
import pytest

from fednar_tff import tasks
from fednar_tff.tasks import shakespeare


@pytest.fixture(scope='module')
def texts():
  """Speeches of five roles, the last two too short in train and in test."""
  generator = np.random.RandomState(0)
  letters = list('abc XYZ.\n7é')

  def speeches(total):
    text = ''.join(generator.choice(letters, total))
    return [text[: total // 3], text[total // 3 :]]

  sizes = {'A': (3000, 900), 'B': (2081, 481), 'C': (2500, 700), 'D': (2078, 900), 'E': (3000, 300)}
  return {
    split: {role: speeches(size[i]) for role, size in sizes.items()}
    for i, split in enumerate(('train', 'test'))
  }


@pytest.fixture
def data_dir(tmp_path, texts, write_database):
  write_database(
    tmp_path / 'shakespeare.sqlite',
    {
      split: {
        role: [{'snippets': s.encode('latin-1')} for s in parts] for role, parts in roles.items()
      }
      for split, roles in texts.items()
    },
  )
  return str(tmp_path)


def _decode(codes):
  return ''.join((shakespeare.VOCABULARY + 'é')[c] for c in codes)


def test_vocabulary_has_80_entries_with_the_unknown_one():
  assert shakespeare.VOCABULARY_SIZE == 80
  assert len(set(shakespeare.VOCABULARY)) == 79
  assert shakespeare.encode(b'\n~\xff').tolist() == [0, 79, 79]


def test_windows_are_80_characters_and_the_next_one(data_dir, texts):
  task = tasks.create_task('shakespeare', data_dir=data_dir, num_clients=3, crop_windows=False)
  assert task.partition.client_ids == ('A', 'B', 'C')
  for role in task.partition.client_ids:
    text = '\n'.join(texts['train'][role])
    examples = list(task.datasets.train_data.create_tf_dataset_for_client(role).as_numpy_iterator())
    assert len(examples) == len(text) - 80
    for start in (0, 1, 700, len(text) - 81):
      assert _decode(examples[start]['x']['tokens']) == text[start : start + 80]
      assert _decode([examples[start]['y']]) == text[start + 80]


def test_cropped_clients_hold_2000_and_400_consecutive_windows(data_dir, texts):
  task = tasks.create_task('shakespeare', data_dir=data_dir, num_clients=3)
  assert [len(rows) for rows in task.partition.rows] == [2000] * 3
  text = '\n'.join(texts['train']['A'])
  dataset = task.datasets.train_data.create_tf_dataset_for_client('A')
  windows = [_decode(e['x']['tokens']) + _decode([e['y']]) for e in dataset.as_numpy_iterator()]
  start = text.index(windows[0])
  assert windows == [text[i : i + 81] for i in range(start, start + 2000)]
  test_texts = ['\n'.join(texts['test'][role]) for role in 'ABC']
  num_test = [0, 0, 0]
  for batch in task.datasets.get_centralized_test_data().as_numpy_iterator():
    for codes in batch['x']['tokens']:
      (owner,) = [i for i, text in enumerate(test_texts) if _decode(codes) in text]
      num_test[owner] += 1
  assert num_test == [400] * 3


def test_roles_and_crops_follow_the_partition_seed(data_dir):
  def facts(partition_seed, num_clients):
    task = tasks.create_task(
      'shakespeare', data_dir=data_dir, num_clients=num_clients, partition_seed=partition_seed
    )
    first = (
      next(iter(task.datasets.train_data.create_tf_dataset_for_client('A')), None)
      if ('A' in task.partition.client_ids)
      else None
    )
    return task.partition.client_ids, first and first['x']['tokens'].numpy().tobytes()

  assert facts(1, 3) == facts(1, 3)
  assert facts(1, 3)[1] != facts(2, 3)[1]
  assert len({facts(seed, 1)[0] for seed in range(5)}) > 1


def test_asking_for_more_roles_than_have_enough_text_is_an_error(data_dir):
  with pytest.raises(ValueError, match='between 1 and 3, .* found 100'):
    tasks.create_task('shakespeare', data_dir=data_dir)


def test_dropout_switch_reaches_the_model(data_dir):
  x = {'tokens': np.zeros([2, 80], np.uint8), 'seed': np.array([1, 2], np.int32)}
  differences = []
  for rate in (0.0, 0.1):
    model = tasks.create_task(
      'shakespeare', data_dir=data_dir, num_clients=3, dropout=rate
    ).model_fn()
    predictions = [model.predict_on_batch(x, training=t).numpy() for t in (True, False)]
    differences.append(np.abs(predictions[0] - predictions[1]).max())
  assert differences[0] < 1e-5 < 1e-2 < differences[1]
