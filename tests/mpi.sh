#!/bin/sh
# SPDX-License-Identifier: MIT
# librowfold_mpi on 1 to 4 ranks of this machine. make check sets MPIRUN; "no" where it is not there.
set -eu
program=tests/c/mpi_shards
if ! test -x "$program" || test "${MPIRUN:-no}" = no; then
    echo "skipped: needs MPI (--with-mpi) and mpirun"
    exit 77
fi
# mpirun is careful about root and about more ranks than processors; tests are not.
OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1 PRTE_MCA_rmaps_default_mapping_policy=:oversubscribe
OMPI_MCA_btl_vader_single_copy_mechanism=none
export OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM OMPI_MCA_rmaps_base_oversubscribe PRTE_MCA_rmaps_default_mapping_policy
export OMPI_MCA_btl_vader_single_copy_mechanism
# MPI itself keeps memory until the process ends.
ASAN_OPTIONS=${ASAN_OPTIONS:+$ASAN_OPTIONS:}detect_leaks=0
export ASAN_OPTIONS
for ranks in 1 2 4; do
    "$MPIRUN" -n $ranks "$program" || { echo "$ranks ranks: failed"; exit 1; }
done

# A rank that dies: mpirun ends the job, in which no other goes on.
status=0
said=$(timeout 100 "$MPIRUN" -n 4 "$program" dying 2>&1) || status=$?
case $status-$said in
0-* | 124-* | *"went on"*) echo "a rank that dies: mpirun ended with status $status: $said"; exit 1 ;;
esac

# The example: 5000 equal logits have the log partition function log(5000), on any number of ranks.
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
header='{"w":{"dtype":"F32","shape":[5000,3],"data_offsets":[0,60000]}}  '
{
    printf "\\$(printf %o ${#header})\\0\\0\\0\\0\\0\\0\\0"
    printf %s "$header"
    head -c 60000 /dev/zero
} >"$work/zeros.safetensors"
for ranks in 1 2 4; do
    said=$(printf '1 2 3\n4 5 6\n' | "$MPIRUN" -n $ranks tests/c/mpi_example "$work/zeros.safetensors" w | tr '\n' ' ')
    test "$said" = '8.51719284 8.51719284 ' || { echo "examples/shards_mpi.c on $ranks ranks says $said"; exit 1; }
done
