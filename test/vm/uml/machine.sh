# Starts a machine of User-Mode Linux in namespaces of its own, as their PID 1: nothing of it outlives this process.
# The environment says what to start: KERNEL DISK COW MEMORY RUN, IMAGES if there is a second disk, PAYLOAD if the
# payload is not below RUN, and PROCESSORS if they are not two. The arguments are added to those of the kernel.
set -e
mount -t proc proc /proc
ip link set lo up
# The other end of the node's network: what runs in this network namespace reaches the machine at 192.0.2.10.
ip link add outside type veth peer name inside
ip addr add 192.0.2.1/24 dev outside
ip link set outside up
ip link set inside up
# Packets leave a veth pair without a checksum, and the machine drops them.
ethtool -K outside tx off >/dev/null
# Another directory of the host may stand for the run's own payload.
if [ -n "$PAYLOAD" ]; then
  mkdir -p "$RUN/payload"
  mount --bind "$PAYLOAD" "$RUN/payload"
fi
# The machine sees this machine's files below /host of its host file system, read-only, where that directory exists.
if [ -d "$RUN/host" ]; then
  mount --bind / "$RUN/host"
  mount -o remount,bind,ro "$RUN/host"
fi
# The second serial line is the control port: file descriptor 3.
exec "$KERNEL" mem="$MEMORY" ncpus="${PROCESSORS:-2}" hostfs="$RUN" seccomp=on umid=machine uml_dir="$RUN" \
  ubda="$COW,$DISK" ${IMAGES:+ubdb="$COW.images,$IMAGES"} root=/dev/ubda rw con=null con0=null,fd:1 ssl=null ssl1=fd:3 \
  vec0:transport=raw,ifname=inside,depth=64 \
  quiet systemd.show_status=false "$@" </dev/null
