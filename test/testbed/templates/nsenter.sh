#!/bin/sh
# The suite works on a node by entering the mount namespace of the node's first process. A machine may keep that process to
# itself, even from root; the container runtime is in the same namespace.
theirs=${1#--mount=}
proc=${theirs%/1/ns/mnt}
if [ "$theirs" = "$proc/1/ns/mnt" ] && ! readlink "$theirs" >/dev/null; then
	for dir in "$proc"/[0-9]*; do
		if [ "$(cat "$dir/comm" 2>/dev/null)" = containerd ] && readlink "$dir/ns/mnt" >/dev/null; then
			shift
			exec /usr/bin/nsenter.real --mount="$dir/ns/mnt" "$@"
		fi
	done
fi
exec /usr/bin/nsenter.real "$@"
