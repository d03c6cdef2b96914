#!/bin/sh
# Shows the processors of the machine in /sys/devices/system, as other kernels do: there User-Mode Linux has no NUMA node,
# and of each processor only that its core and its socket are not known. Each processor is a core of one socket with one
# NUMA node. The policies of the CPU and memory managers need that, and their tests a PCI bus.
set -e
system=/sys/devices/system
[ ! -e $system/node/node0 ] || exit 0
new=/run/system
mkdir -p $new
cp -r $system/. $new 2>/dev/null || true # some files cannot be read
n=$(nproc --all)
last=$((n - 1))
all=$(printf %x $(((1 << n) - 1)))
node=$new/node/node0
mkdir -p $node
for cpu in $(seq 0 $last); do
  topology=$new/cpu/cpu$cpu/topology
  mkdir -p $topology
  own=$(printf %x $((1 << cpu)))
  echo "$cpu" >$topology/core_id
  echo 0 >$topology/physical_package_id
  for list in core_cpus thread_siblings; do
    echo "$own" >$topology/$list
    echo "$cpu" >$topology/${list}_list
  done
  for list in package_cpus core_siblings; do
    echo "$all" >$topology/$list
    echo "0-$last" >$topology/${list}_list
  done
  ln -s ../../cpu/cpu$cpu $node/cpu$cpu
done
for list in online possible present; do
  echo "0-$last" >$new/cpu/$list
  echo 0 >$new/node/$list
done
echo $last >$new/cpu/kernel_max
echo "$all" >$node/cpumap
echo "0-$last" >$node/cpulist
echo 10 >$node/distance
sed 's/^/Node 0 /' /proc/meminfo >$node/meminfo
mkdir -p $node/hugepages
cp -r /sys/kernel/mm/hugepages/. $node/hugepages 2>/dev/null || true
mount --bind $new $system
mkdir -p /run/bus
cp -r /sys/bus/. /run/bus 2>/dev/null || true # some files cannot be read
mkdir -p /run/bus/pci/devices
mount --bind /run/bus /sys/bus
# A second sysfs without these files on top. The kernel demands one before a user namespace may mount its own.
mkdir -p /run/sys
mount -t sysfs sysfs /run/sys
