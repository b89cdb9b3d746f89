#!/bin/bash
# Trains on the nodes of a SLURM allocation: a Ray cluster over all of them, and the driver on the first.
#   sbatch infra/slurm/train.sh CONFIG --store FOLDER [more arguments of `erl-pipeline train`]
# CONFIG has `runner: {type: ray, address: auto, workers: N}`; CONFIG, FOLDER and the environment with erl-pipeline
# are where all nodes see them. After the time limit has ended the job, the same command continues from what is committed.
#SBATCH --job-name=erl-pipeline
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=1
#SBATCH --cpus-per-task=8
#SBATCH --time=12:00:00
#SBATCH --signal=B:TERM@180
#SBATCH --output=erl-pipeline-%j.log

set -euo pipefail

if [ $# -eq 0 ]; then
  echo "usage: sbatch $0 CONFIG --store FOLDER ..." >&2
  exit 2
fi

# Where the environment with erl-pipeline and Ray is; default: that of the shell that called sbatch.
if [ -n "${ERL_PIPELINE_VENV:-}" ]; then
  # shellcheck source=/dev/null
  source "$ERL_PIPELINE_VENV/bin/activate"
fi

export RAY_USAGE_STATS_ENABLED=0 DO_NOT_TRACK=1
# srun does not take it from the allocation by itself: Ray would announce more cores than its processes may use.
export SRUN_CPUS_PER_TASK="${SLURM_CPUS_PER_TASK:-1}"
# One token for all nodes of this allocation. It is in no file, and other users cannot read the environment.
RAY_AUTH_MODE=token
RAY_AUTH_TOKEN=$(python -c 'import secrets; print(secrets.token_hex(32))')
export RAY_AUTH_MODE RAY_AUTH_TOKEN

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head_node=${nodes[0]}
head_address=$(srun --nodes=1 --ntasks=1 --nodelist="$head_node" hostname --ip-address | awk '{print $1}')
# The port depends on the job, so that two jobs on one node have different ports.
port=$((20000 + SLURM_JOB_ID % 20000))
export RAY_ADDRESS="$head_address:$port"

ray_options=(--num-cpus="${SLURM_CPUS_PER_TASK:-1}" --num-gpus="${SLURM_GPUS_ON_NODE:-0}" --disable-usage-stats --block)
ray_processes=()

# However the script ends, no Ray process of this job is left.
trap 'kill "${ray_processes[@]}" 2>/dev/null || true; wait "${ray_processes[@]}" 2>/dev/null || true' EXIT

start_on() {
  srun --nodes=1 --ntasks=1 --overlap --nodelist="$1" --export=ALL ray start "${@:2}" "${ray_options[@]}" &
  ray_processes+=($!)
}

start_on "$head_node" --head --node-ip-address="$head_address" --port="$port" --include-dashboard=false
until srun --nodes=1 --ntasks=1 --overlap --nodelist="$head_node" ray health-check --address "$RAY_ADDRESS" 2>/dev/null; do
  kill -0 "${ray_processes[0]}" || exit 1 # the head has ended; its last output is above
  sleep 2
done
for node in "${nodes[@]:1}"; do
  start_on "$node" --address="$RAY_ADDRESS"
done
timeout 300 srun --nodes=1 --ntasks=1 --overlap --nodelist="$head_node" --export=ALL python - "${#nodes[@]}" <<'PYTHON'
import sys, time
import ray
ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
while sum(node["Alive"] for node in ray.nodes()) < int(sys.argv[1]):
    time.sleep(1)
PYTHON

# This script runs on the first node. Not by srun, which answers TERM by killing what it runs.
erl-pipeline train "$@" &
driver=$!
# SLURM sends TERM three minutes before the time limit: the driver then ends after the commit in progress.
trap 'kill -TERM "$driver"' TERM INT
status=0
wait "$driver" || status=$?
# A trapped signal ends the first wait, but not the driver: wait for it again.
if kill -0 "$driver" 2>/dev/null; then
  wait "$driver" || status=$?
fi
exit "$status"
