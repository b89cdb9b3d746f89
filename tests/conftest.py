"""One thread for all numeric libraries: the tests are small, and threads that spin cost more than they do."""

import os

os.environ.update(OMP_NUM_THREADS="1", TOKENIZERS_PARALLELISM="false", HF_HUB_OFFLINE="1")

import torch

torch.set_num_threads(1)
