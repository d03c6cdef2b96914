#!/bin/sh
# runc for a machine without CAP_SYS_RESOURCE (as many VMs and containers are): no process can lower its oom_score_adj, and a
# privileged one cannot have that capability. Nor has such a machine a hierarchy for each controller of cgroup v1 that its kernel
# knows. CRI-O has no setting for either.
before=
for arg; do
	case "$before" in
	--bundle | -b) file="$arg/config.json" ;;
	--process | -p) file="$arg" ;;
	esac
	before="$arg"
done
if [ -n "$file" ]; then
	sed -z -i -e 's/"oomScoreAdj":[[:space:]]*-[0-9]*/"oomScoreAdj":0/' \
		-e 's/"hugepageLimits":[[:space:]]*\[[^]]*\]/"hugepageLimits":[]/' \
		-e 's/"CAP_SYS_RESOURCE",[[:space:]]*//g' -e 's/,[[:space:]]*"CAP_SYS_RESOURCE"//g' "$file"
fi
exec {{.Runc}} "$@"
