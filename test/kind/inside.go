package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
)

// nodeletInside tests a cluster whose node image has nodelet in place of the kubelet.
func (l *lab) nodeletInside(ctx context.Context, nodelet string) error {
	if err := step("build the node image with nodelet at /usr/bin/kubelet",
		func() error { return l.buildImage(ctx, nodelet) }); err != nil {
		return err
	}
	c, err := l.create(ctx, "inside", nodeletImage)
	if err != nil {
		return err
	}
	err = step("check the static control plane, a Deployment, logs, exec and services", func() error {
		if err := c.runBy(ctx, c.node(), "+nodelet."); err != nil {
			return err
		}
		if err := c.expect(ctx, "Running Running Running Running", ".items[*].status.phase",
			"pods", "-n", "kube-system", "-l", "tier=control-plane"); err != nil {
			return err
		}
		if err := c.apply(ctx, "web.yaml"); err != nil {
			return err
		}
		if err := c.rolledOut(ctx, "default", "deployment/web"); err != nil {
			return err
		}
		return c.talk(ctx, "web", "Started HTTP server on port 8080")
	})
	if err != nil {
		return errors.Join(err, c.show(ctx))
	}
	return c.delete(ctx)
}

// buildImage adds nodelet to the node image, as docs/kind.md describes.
func (l *lab) buildImage(ctx context.Context, nodelet string) error {
	dir := filepath.Join(l.dir, "build")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if _, err := run(ctx, "cp", nodelet, filepath.Join(dir, "nodelet")); err != nil {
		return err
	}
	text := "FROM " + nodeImage + "\nCOPY nodelet /usr/bin/kubelet\n"
	if err := os.WriteFile(filepath.Join(dir, "Dockerfile"), []byte(text), 0o644); err != nil {
		return err
	}
	_, err := l.do(ctx, "docker", "build", "-q", "-t", nodeletImage, dir)
	return err
}
