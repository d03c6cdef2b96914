#!/bin/sh
# Calls the OCI runtime. On a machine without CAP_SYS_RESOURCE (as many VMs and containers are) it removes settings from
# a container's configuration first: no process can lower its oom_score_adj there, and a privileged one cannot have that
# capability. Nor has such a machine a hierarchy for each controller of cgroup v1 that its kernel knows. CRI-O has no
# setting for either. Debian 12's crun refuses a configuration of a newer version than 1.0 of the specification, also one
# with nothing newer in it; containerd 2.4 writes 1.3.
before=
for arg; do
	case "$before" in
	--bundle | -b) file="$arg/config.json" ;;
	--process | -p) file="$arg" ;;
	esac
	before="$arg"
done
if {{.RestrictOOM}} && [ -n "$file" ]; then
	sed -z -i -e 's/"oomScoreAdj":[[:space:]]*-[0-9]*/"oomScoreAdj":0/' \
		-e 's/"hugepageLimits":[[:space:]]*\[[^]]*\]/"hugepageLimits":[]/' \
		-e 's/"CAP_SYS_RESOURCE",[[:space:]]*//g' -e 's/,[[:space:]]*"CAP_SYS_RESOURCE"//g' "$file"
fi
if {{.Crun}} && [ -n "$file" ]; then
	sed -i -e 's/"ociVersion":[[:space:]]*"1\.[1-9][^"]*"/"ociVersion":"1.0.2"/' "$file"
fi
exec {{.OCIRuntime}} "$@"
