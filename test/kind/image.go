package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/nodelet/nodelet/test/testbed"
)

// nodeRevision names the content of the node image. Change it to rebuild the image.
const nodeRevision = "r1"

// debianOfNode are the packages of kind's own image that a node without NFS and iSCSI needs.
const debianOfNode = "systemd,dbus,conntrack,iptables,nftables,iproute2,ethtool,util-linux,mount,kmod,libseccomp2," +
	"e2fsprogs,bash,ca-certificates,curl,jq,procps"

// furnish does in the image's root what kind's Dockerfile does, except that it does not lower the OOM score of
// containerd and its containers: that needs a capability which not every machine can give.
const furnish = `
for dir in lib/systemd/system/multi-user.target.wants etc/systemd/system/*.wants \
  lib/systemd/system/local-fs.target.wants lib/systemd/system/basic.target.wants; do rm -f $dir/*; done
rm -f lib/systemd/system/sockets.target.wants/*udev* lib/systemd/system/sockets.target.wants/*initctl* \
  lib/systemd/system/sysinit.target.wants/systemd-tmpfiles-setup.service
echo ReadKMsg=no >> etc/systemd/journald.conf
ln -sf /usr/lib/systemd/systemd sbin/init
chmod 755 kind/bin/* usr/local/bin/*
sed -i -e 's/restrict_oom_score_adj = false/restrict_oom_score_adj = true/' \
  -e 's#sandbox_image = .*#sandbox_image = "registry.k8s.io/pause:3.10.2"#' etc/containerd/config.toml
sed -i /OOMScoreAdjust/d etc/systemd/system/containerd.service
chroot . systemctl -q enable kubelet containerd undo-mount-hacks
chroot . systemctl -q mask systemd-binfmt
chroot . ctr oci spec |
  jq '.hooks.createContainer += [{"path": "/kind/bin/mount-product-files.sh"}] | del(.process.rlimits)' \
  > etc/containerd/cri-base.json
mkdir -p etc/kubernetes/manifests
`

// nodeImage returns an archive of the root of kind's node image with the kubelet. It builds the image if it is missing.
func (l *lab) nodeImage(ctx context.Context) (string, error) {
	archive := filepath.Join(l.parts, "node-"+nodeRevision+"-"+l.kubernetes+".tar")
	if _, err := os.Stat(archive); err == nil {
		return archive, nil
	}
	images, err := l.images(ctx)
	if err != nil {
		return "", err
	}
	debian, err := l.debian(ctx)
	if err != nil {
		return "", err
	}
	fmt.Println("building kind's node image")
	root, err := os.MkdirTemp(l.parts, "root-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(root)
	if err := os.Chmod(root, 0o755); err != nil {
		return "", err
	}
	if _, err := run(ctx, "cp", "-a", debian+"/.", root); err != nil {
		return "", err
	}
	if err := l.fill(ctx, root); err != nil {
		return "", err
	}
	if err := l.preload(ctx, root, images); err != nil {
		return "", fmt.Errorf("add images to the node image: %w", err)
	}
	if _, err := run(ctx, "tar", "-C", root, "--one-file-system", "--xattrs", "-cf", archive+".new", "."); err != nil {
		return "", err
	}
	return archive, os.Rename(archive+".new", archive)
}

// images returns the archives of all images that the pods of the clusters need.
func (l *lab) images(ctx context.Context) ([]string, error) {
	cluster, err := l.cache.ClusterImages(ctx)
	if err != nil {
		return nil, err
	}
	addons, err := l.cache.AddonImages(ctx)
	if err != nil {
		return nil, err
	}
	plain, err := l.cache.Images(ctx)
	return slices.Concat(cluster, addons, plain), err
}

// debian installs the distribution into the image's root.
func (l *lab) debian(ctx context.Context) (string, error) {
	dir := filepath.Join(l.parts, "debian-"+nodeRevision)
	if _, err := os.Stat(dir); err == nil {
		return dir, nil
	}
	if err := testbed.InstallDebian(ctx, os.Stdout, map[string]string{"debootstrap": "debootstrap"}); err != nil {
		return "", err
	}
	fmt.Println("fetching Debian for the node image (minutes)")
	next := dir + ".new"
	if err := os.RemoveAll(next); err != nil {
		return "", err
	}
	if _, err := run(ctx, "debootstrap", "--variant=minbase", "--include="+debianOfNode, "bookworm", next); err != nil {
		return "", err
	}
	return dir, os.Rename(next, dir)
}

// fill copies the programs and kind's files into the image's root.
func (l *lab) fill(ctx context.Context, root string) error {
	from, err := l.cache.ModuleSource(ctx, "kind")
	if err != nil {
		return err
	}
	base := filepath.Join(from, "images/base/files")
	if _, err := run(ctx, "sh", "-ec", `cd "$1" && tar -c --owner=0 --group=0 --mode=u+w . | tar -x -C "$2"`, "sh", base,
		root); err != nil {
		return err
	}
	for _, p := range []struct {
		module, into string
		programs     []string // empty: all
	}{
		{"containerd", "usr/local/bin", nil}, {"runc", "usr/local/sbin", nil},
		{"cri-tools", "usr/local/bin", []string{"crictl"}},
		{"cni", "opt/cni/bin", nil}, {"kubernetes", "usr/bin", []string{"kubelet", "kubeadm", "kubectl"}},
	} {
		dir, err := l.cache.Programs(ctx, p.module, p.programs...)
		if err != nil {
			return err
		}
		if err := copyPrograms(ctx, dir, filepath.Join(root, p.into), p.programs); err != nil {
			return err
		}
	}
	if err := os.WriteFile(filepath.Join(root, "kind/version"), []byte(l.kubernetes), 0o644); err != nil {
		return err
	}
	_, err = run(ctx, "sh", "-ec", `cd "$1"`+furnish, "sh", root)
	return err
}

func copyPrograms(ctx context.Context, from, into string, names []string) error {
	if err := os.MkdirAll(into, 0o755); err != nil {
		return err
	}
	if len(names) == 0 {
		_, err := run(ctx, "cp", "-r", from+"/.", into)
		return err
	}
	for _, n := range names {
		if _, err := run(ctx, "cp", filepath.Join(from, n), into); err != nil {
			return err
		}
	}
	return nil
}

// preload unpacks images into the data of the image's containerd, with a containerd that runs on this machine
// meanwhile.
func (l *lab) preload(ctx context.Context, root string, images []string) error {
	bin, err := l.cache.Programs(ctx, "containerd")
	if err != nil {
		return err
	}
	state, err := os.MkdirTemp(l.parts, "containerd-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(state)
	config, socket := filepath.Join(state, "config.toml"), filepath.Join(state, "sock")
	text := `version = 3
disabled_plugins = ["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime"]
`
	if err := os.WriteFile(config, []byte(text), 0o644); err != nil {
		return err
	}
	c := exec.CommandContext(ctx, filepath.Join(bin, "containerd"), "--config", config, "--root",
		filepath.Join(root, "var/lib/containerd"),
		"--state", filepath.Join(state, "state"), "--address", socket, "--log-level", "error")
	// an interrupt at the terminal must not reach it: it is terminated below
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return c.Process.Signal(syscall.SIGTERM) }
	var log strings.Builder
	c.Stdout, c.Stderr = &log, &log
	if err := c.Start(); err != nil {
		return err
	}
	ctr := func(args ...string) error {
		_, err := run(ctx, filepath.Join(bin, "ctr"),
			append([]string{"--address", socket, "--namespace", "k8s.io"}, args...)...)
		return err
	}
	err = until(ctx, 30*time.Second, func() error { return ctr("version") })
	for _, i := range images {
		if err == nil {
			err = ctr("images", "import", "--local", "--discard-unpacked-layers", i)
		}
	}
	if err == nil {
		err = ctr("content", "prune", "references")
	}
	_ = c.Process.Signal(syscall.SIGTERM)
	_ = c.Wait()
	if err != nil {
		return fmt.Errorf("%w\n%s", err, log.String())
	}
	return noMounts(root)
}

// noMounts returns an error if anything is mounted below a directory, which will be packed and removed.
func noMounts(dir string) error {
	text, err := os.ReadFile("/proc/self/mounts")
	if err != nil {
		return err
	}
	if strings.Contains(string(text), " "+dir+"/") {
		return errors.New("there are still mounts below " + dir)
	}
	return nil
}
