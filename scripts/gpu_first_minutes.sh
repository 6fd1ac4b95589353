#!/usr/bin/env bash
# The first minutes on a machine with a card: correctness, figures, and the whole stack, in stages.
#
# It needs PyTorch, Triton, transformers, tokenizers, grpcio and pytest, no package index and no
# build: the rest comes in wheels that scripts/gpu_wheels.py has gathered. Each stage is a process
# with a time limit; one that fails stops no other. After each stage all of its output is in the
# results, so that a machine that is taken away loses the stage that ran and no more.
set -u
shopt -s nullglob globstar
cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit
ROOT=$PWD

# Seconds, name, what it is; the cheapest kernels come first. `group N` begins a group of stages
# that together end within ten minutes on a card of the data centre.
STAGES='
group 1
 90 machine   driver, compilers, versions, signalbox doctor
 60 imports   every module of ours
150 ops       the cheapest kernels
120 sampling  kernels of sampling
180 attention kernels of attention
180 card      tests/gpu, one after the other
 90 sanitizer compute-sanitizer on some tests of attention
group 2
180 steps     decode of 1 and of 256, prefill of 8,192, and what the design takes for granted
150 kernels   the longest kernels of these steps
240 sweep     sizes of the tile of attention
group 3
330 parts     a workload, idle time, swap, attention
240 stack     router, scheduler and worker under signalbox bench
180 model     the demo model, if it is there, beside transformers
group 4
400 switches  the steps with each switch the other way
150 peers     transformers on the same work
'

usage() {
    cat <<EOF
usage: scripts/gpu_first_minutes.sh [options]

  --stages LIST    names or groups, separated by commas (default: all)
  --resume         leave out the stages that have passed in the same --work
  --limit SECONDS  for each stage, instead of its own; for a slow card
  --total SECONDS  end within this time; stages for which none is left are not done
  --output DIR     for the results: summary.txt, figures.md, results.tar.gz (default \$OUT, or
                   build/gpu_results)
  --work DIR       for unpacked wheels, compiled kernels and the stages' files (default build/gpu_work)
  --wheels DIR     what scripts/gpu_wheels.py has gathered (default build/gpu_wheels)
  --python PROGRAM default python3
  --device cpu --tiny   see that all stages work, where there is no card; the figures mean nothing

stages: seconds that each may take, name, what it is
$STAGES
EOF
}

fail() {
    echo "gpu_first_minutes: $1" >&2
    exit 2
}

PYTHON=python3 DEVICE=cuda TINY='' CHOSEN=all RESUME='' EACH='' TOTAL='' STAGE=''
OUTPUT=${OUT:-build/gpu_results} WORK=build/gpu_work WHEELS=build/gpu_wheels
while [ $# -gt 0 ]; do
    case $1 in
    --resume | --tiny | --help) ;;
    *) [ $# -gt 1 ] || fail "$1 needs a value, or is no option; see --help" ;;
    esac
    case $1 in
    --stages) CHOSEN=$2 && shift ;;
    --resume) RESUME=1 ;;
    --limit) EACH=$2 && shift ;;
    --total) TOTAL=$2 && shift ;;
    --output) OUTPUT=$2 && shift ;;
    --work) WORK=$2 && shift ;;
    --wheels) WHEELS=$2 && shift ;;
    --python) PYTHON=$2 && shift ;;
    --device) DEVICE=$2 && shift ;;
    --tiny) TINY=--tiny ;;
    --stage) STAGE=$2 && shift ;; # of this script: one stage, here
    --help) usage && exit ;;
    *) fail "there is no option $1; see --help" ;;
    esac
    shift
done
case $DEVICE in cuda | cpu) ;; *) fail "--device is $DEVICE; it is cuda or cpu" ;; esac
command -v "$PYTHON" >/dev/null || fail "there is no program $PYTHON"
PYTHON=$(command -v "$PYTHON")
mkdir -p "$OUTPUT" "$WORK" || exit
OUTPUT=$(realpath "$OUTPUT") WORK=$(realpath "$WORK") SITE=$WORK/site

FOLDERS='clients/python contract gpu_worker kernels protos router rpc scheduler_svc'
export PYTHONPATH=$SITE:$ROOT$(printf ":$ROOT/%s" $FOLDERS) PYTHONUNBUFFERED=1
export TRITON_CACHE_DIR=${TRITON_CACHE_DIR:-$WORK/triton}
[ "$DEVICE" = cuda ] && export TRITON_INTERPRET=0

# ---- what the stages do; each runs in $HERE, whose files are part of the results ----

# Wheels are checked by hash, and pip refuses those of another Python or platform.
unpack_wheels() {
    [ -e "$SITE/complete" ] && return
    [ -e "$WHEELS/SHA256SUMS" ] || {
        echo "no wheels in $WHEELS: what is installed has to do; scripts/gpu_wheels.py gathers them"
        return
    }
    (cd "$WHEELS" && sha256sum --quiet --check SHA256SUMS) || return
    rm -rf "$SITE"
    "$PYTHON" -m pip install --quiet --disable-pip-version-check --no-index --no-deps \
        --no-compile --target "$SITE" "$WHEELS"/*.whl && touch "$SITE/complete"
}

# Triton compiles its driver with a C compiler when a kernel first runs.
check_compiler() {
    local compiler headers
    headers=$("$PYTHON" -c 'import sysconfig; print(sysconfig.get_path("include"))')
    compiler=$(command -v "${CC-gcc}" || { [ -z "${CC+named}" ] && command -v clang; }) || {
        echo "FOUND NO C COMPILER: Triton cannot start; install gcc, or name one in CC"
        return 1
    }
    echo '#include <Python.h>' >"$HERE/headers.c"
    "$compiler" -shared -fPIC -I "$headers" -o "$HERE/headers.so" "$HERE/headers.c" || {
        echo "$compiler CANNOT COMPILE A FILE WITH Python.h: Triton cannot start; install python3-dev"
        return 1
    }
    rm "$HERE/headers.so"
    echo "$compiler compiles with Python.h"
}

stage_machine() {
    local status=0 program
    check_compiler || status=1
    for program in nvidia-smi "nvidia-smi -q" "nvcc --version" "ncu --version" \
        "compute-sanitizer --version" lscpu "free -g" "df -h ." "$PYTHON -m pip list"; do
        printf '\n$ %s\n' "$program"
        $program 2>&1
    done
    printf '\n$ signalbox doctor\n'
    "$PYTHON" -m signalbox doctor 2>&1 || status=1
    return $status
}

stage_imports() {
    "$PYTHON" - "$DEVICE" <<'PROGRAM'
import importlib.util, pkgutil, sys, time
failed, lacking = [], []
start = time.monotonic()
parts = "protos contract rpc router scheduler worker client kernels"
tops = ["signalbox", *(f"signalbox_{part}" for part in parts.split())]
found = [*tops]
for top in tops:
    path = importlib.import_module(top).__path__
    found += [one.name for one in pkgutil.walk_packages(path, f"{top}.", onerror=failed.append)]
for name in found:
    if name.endswith("__main__"):
        continue
    try:
        importlib.import_module(name)
    except Exception as error:
        lacks = getattr(error, "name", "")
        if lacks == "ray" or (sys.argv[1] == "cpu" and lacks == "triton"):  # Ray is an extra
            lacking.append(lacks)
        else:
            failed.append(f"{name}: {type(error).__name__}: {error}")
seconds = time.monotonic() - start
print(f"{len(found)} modules in {seconds:.1f} s; {len(lacking)} need what is not here: {sorted(set(lacking))}")
print(*failed, sep="\n")
sys.exit(bool(failed))
PROGRAM
}

run_tests() { # as many processes as the first argument says
    local processes=$1
    shift
    [ -n "$TINY" ] && set -- -m "not (slow or system or alone or pages)" "$@"
    "$PYTHON" -m pytest -n "$processes" -p no:cacheprovider -ra --durations=10 \
        --junitxml="$HERE/junit.xml" "$@" || [ "$TINY$?" = --tiny5 ] # of which all are slow
}

# One process of tests a core, and no more than there is room for on the card.
num_processes() {
    local cores=$(nproc) room=16 free
    free=$(nvidia-smi --query-gpu=memory.free --format=csv,noheader,nounits 2>/dev/null | head -1)
    [ -n "$free" ] && room=$((free / 1500))
    printf '%s\n' "$cores" "$room" 16 | sort -n | head -1
}

# The tests of a kernel are those that take it through the fixture `triton_device`.
kernel_tests() {
    grep -rl triton_device --include='test_*.py' tests | sort
}

stage_ops() {
    run_tests "$(num_processes)" $(kernel_tests | grep -v -e attention -e sampling)
}
stage_sampling() {
    run_tests "$(num_processes)" $(kernel_tests | grep sampling)
}
stage_attention() {
    run_tests "$(num_processes)" $(kernel_tests | grep attention)
}
stage_card() {
    run_tests 0 tests/gpu
}

stage_sanitizer() {
    command -v compute-sanitizer >/dev/null || skip "no compute-sanitizer here"
    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --error-exitcode 9 \
        --target-processes all "$PYTHON" -m pytest -p no:cacheprovider -p no:xdist -x \
        tests/kernels/triton/test_attention.py -k "heads_of_a_group or a_nan_stays"
}

measure() {
    "$PYTHON" -m benchmarks.gpu --device "$DEVICE" $TINY --out "$HERE" --limit "$((LIMIT - 10))" --parts "$@"
}

stage_steps() { measure probes steps; }
stage_kernels() { measure kernels; }
stage_sweep() { measure sweep; }
stage_parts() { measure attention gap swap workload; }
stage_stack() { measure stack; }
stage_peers() { measure transformers; }
stage_switches() {
    measure steps $("$PYTHON" - "$DEVICE" <<'PROGRAM'
import sys
from benchmarks.gpu.part_list import PARTS
switches = {name: part for name, part in PARTS.items() if name.startswith("steps-")}
print(*(name for name, part in switches.items() if sys.argv[1] == "cuda" or not part.needs_card))
PROGRAM
    )
}

# The model travels in parts, one with each of several commands.
stage_model() {
    local part parts=(build/gpu_model_*/*_of_*) model=models/SmolLM2-135M-Instruct.Q4_1.gguf
    if [ ! -e $model ]; then
        [ ${#parts[@]} -gt 0 ] && [ ${#parts[@]} -eq "${parts[0]##*_of_}" ] ||
            skip "no model in models/, and ${#parts[@]} parts of it in build/gpu_model_*"
        for part in build/gpu_model_*/; do
            (cd "$part" && sha256sum --quiet --check SHA256SUMS) || return
        done
        mkdir -p models && cat "${parts[@]}" >$model.joined && mv $model.joined $model
    fi
    run_tests 0 tests/gpu/test_demo_model.py
}

skip() { # ends a stage that cannot be done here
    echo "$1"
    exit 77
}

# ---- running them ----

if [ -n "$STAGE" ]; then
    HERE=$WORK/stages/$STAGE
    if [ "$STAGE" = wheels ]; then unpack_wheels; else "stage_$STAGE"; fi
    exit
fi

in_words() { # of an exit status
    case $1 in
    0) echo passed ;;
    77) echo "not done: $(tail -n 1 "$2")" ;;
    124 | 137) echo "FAILED: not done within its limit" ;;
    *) echo "FAILED with status $1" ;;
    esac
}

# Everything in few files: what comes back from a machine may be limited to 8 files of 16 MiB.
gather() {
    local stage file
    for stage in $ORDER; do
        file=$WORK/stages/$stage/status
        [ -e "$file" ] && printf '%-10s %s\n' "$stage" "$(cat "$file")"
    done >"$OUTPUT/summary.txt"
    for stage in $ORDER; do
        file=$WORK/stages/$stage/gpu.md
        [ -e "$file" ] && printf '## %s\n\n%s\n\n' "$stage" "$(cat "$file")"
    done >"$OUTPUT/figures.md"
    sed -n 's/^| \(.*\) | no | .*/aim missed: \1/p' "$OUTPUT/figures.md" >>"$OUTPUT/summary.txt"
    rm -f "$OUTPUT"/results.tar.gz*
    tar -C "$WORK" -cz stages >"$WORK/results.tar.gz"
    if [ "$(stat -c %s "$WORK/results.tar.gz")" -gt 15000000 ]; then
        split -b 15000000 -d -a 1 "$WORK/results.tar.gz" "$OUTPUT/results.tar.gz."
    else
        mv "$WORK/results.tar.gz" "$OUTPUT/results.tar.gz"
    fi
}

run_stage() { # name, limit
    local log=$WORK/stages/$1/log.txt start=$SECONDS status
    rm -rf "${WORK:?}/stages/$1"
    mkdir -p "$WORK/stages/$1"
    LIMIT=$2 timeout --kill-after=15 "$2" bash "$ROOT/scripts/gpu_first_minutes.sh" --stage "$1" \
        --work "$WORK" --output "$OUTPUT" --wheels "$WHEELS" --python "$PYTHON" --device "$DEVICE" $TINY \
        >"$log" 2>&1 </dev/null
    status=$?
    echo "$(in_words $status "$log") ($((SECONDS - start)) s)" >"$WORK/stages/$1/status"
    echo "== $1: $(cat "$WORK/stages/$1/status")"
    [ $status -eq 0 ] || { tail -n 15 "$log"; [ $status -eq 77 ] || FAILED=1; }
    gather
}

FAILED='' ORDER=wheels TODO=() GROUP=''
SELECTED=,$CHOSEN,
while read -r limit name _; do
    [ "$limit" = group ] && GROUP=$name && continue
    [ -n "$name" ] || continue
    ORDER+=" $name"
    [[ $SELECTED == *,$name,* || $SELECTED == *,$GROUP,* || $SELECTED == ,all, ]] && TODO+=("$name:$limit")
done <<<"$STAGES"
for name in ${CHOSEN//,/ }; do
    [[ " all 1 2 3 4 $ORDER " == *" $name "* ]] || fail "there is no stage or group $name; see --help"
done

run_stage wheels 120
if [ "$DEVICE" = cuda ] &&
    ! "$PYTHON" -c 'import sys, torch; sys.exit(not torch.cuda.is_available())'; then
    run_stage machine 90 # which may say why
    fail "PyTorch finds no CUDA device; --device cpu --tiny shows that all stages work"
fi
for each in "${TODO[@]}"; do
    name=${each%:*} limit=${EACH:-${each#*:}}
    [ -n "$RESUME" ] && grep -qs '^passed' "$WORK/stages/$name/status" && continue
    if [ -n "$TOTAL" ]; then
        left=$((TOTAL - SECONDS - 10))
        [ "$left" -ge 5 ] || { echo "== $name: no time is left"; FAILED=1; continue; }
        [ "$left" -lt "$limit" ] && limit=$left
    fi
    run_stage "$name" "$limit"
done
echo
cat "$OUTPUT/summary.txt"
echo "results in $OUTPUT"
[ -z "$FAILED" ]
