package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// timeout limits every wait for a cluster.
const timeout = 3 * time.Minute

// cluster is a cluster that kind has created.
type cluster struct {
	l    *lab
	name string
}

// create creates a cluster with a node image and installs the network. It waits until the node is Ready and DNS works.
func (l *lab) create(ctx context.Context, name, image string) (*cluster, error) {
	c := &cluster{l, name}
	err := step(fmt.Sprintf("kind create cluster --name %s --image %s", name, image), func() error {
		config, err := l.lay("cluster.yaml")
		if err != nil {
			return err
		}
		_, err = l.do(ctx, "kind", "create", "cluster", "--name", name, "--image", image, "--config", config, "--retain",
			"--verbosity", "1")
		return err
	})
	if err != nil {
		return c, errors.Join(err, c.show(ctx))
	}
	return c, step("install Flannel, wait for the node and CoreDNS", func() error {
		if err := c.apply(ctx, "flannel.yaml"); err != nil {
			return err
		}
		if err := c.wait(ctx, "condition=Ready", "node", c.node()); err != nil {
			return err
		}
		return c.rolledOut(ctx, "kube-system", "deployment/coredns", "daemonset/kube-proxy")
	})
}

// node returns the name of the node that kind has created.
func (c *cluster) node() string { return c.name + "-control-plane" }

func (c *cluster) delete(ctx context.Context) error {
	return step("kind delete cluster --name "+c.name, func() error {
		if _, err := c.l.do(ctx, "kind", "delete", "cluster", "--name", c.name); err != nil {
			return err
		}
		return c.l.nothing(ctx, "docker", "ps", "-aq")
	})
}

// nothing runs a command and returns an error if it prints anything.
func (l *lab) nothing(ctx context.Context, args ...string) error {
	out, err := l.do(ctx, args...)
	if err == nil && strings.TrimSpace(out) != "" {
		err = fmt.Errorf("%s: left over: %s", strings.Join(args, " "), out)
	}
	return err
}

// lay writes an embedded file to a directory.
func (l *lab) lay(name string) (string, error) {
	text, err := files.ReadFile("files/" + name)
	if err != nil {
		return "", err
	}
	path := filepath.Join(l.dir, name)
	return path, os.WriteFile(path, text, 0o644)
}

// kubectl runs kubectl and returns its output.
func (c *cluster) kubectl(ctx context.Context, args ...string) (string, error) {
	return c.l.do(ctx, append([]string{"kubectl", "--context", "kind-" + c.name}, args...)...)
}

func (c *cluster) apply(ctx context.Context, name string) error {
	path, err := c.l.lay(name)
	if err != nil {
		return err
	}
	_, err = c.kubectl(ctx, "apply", "-f", path)
	return err
}

func (c *cluster) wait(ctx context.Context, what string, objects ...string) error {
	_, err := c.kubectl(ctx, append([]string{"wait", "--for=" + what, "--timeout=" + timeout.String()}, objects...)...)
	return err
}

func (c *cluster) rolledOut(ctx context.Context, namespace string, objects ...string) error {
	for _, o := range objects {
		if _, err := c.kubectl(ctx, "-n", namespace, "rollout", "status", o, "--timeout="+timeout.String()); err != nil {
			pods, _ := c.kubectl(ctx, "get", "pods", "-A", "-o", "wide")
			return fmt.Errorf("%w\n%s", err, pods)
		}
	}
	return nil
}

// field returns one field of an object by its JSONPath.
func (c *cluster) field(ctx context.Context, path string, object ...string) (string, error) {
	return c.kubectl(ctx, append([]string{"get", "-o", "jsonpath={" + path + "}"}, object...)...)
}

// expect returns an error if a field of an object has another value.
func (c *cluster) expect(ctx context.Context, want, path string, object ...string) error {
	got, err := c.field(ctx, path, object...)
	if err == nil && got != want {
		err = fmt.Errorf("%s: %s: got %q, want %q", strings.Join(object, "/"), path, got, want)
	}
	return err
}

// says returns an error if got does not contain want.
func says(err error, what, got, want string) error {
	if err == nil && !strings.Contains(got, want) {
		err = fmt.Errorf("%s: got %q, want %q", what, strings.TrimSpace(got), want)
	}
	return err
}

// runBy returns an error if the version of a node's agent does not contain want.
func (c *cluster) runBy(ctx context.Context, node, want string) error {
	got, err := c.field(ctx, ".status.nodeInfo.kubeletVersion", "node", node)
	return says(err, "the version of "+node+"'s agent", got, want)
}

// talk tests logs and exec of a pod that selector selects, and that the pod reaches services by name.
func (c *cluster) talk(ctx context.Context, app, logged string) error {
	pod, err := c.field(ctx, ".items[0].metadata.name", "pods", "-l", "app="+app)
	if err != nil {
		return err
	}
	out, err := c.kubectl(ctx, "logs", pod)
	if err := says(err, "logs of "+pod, out, logged); err != nil {
		return err
	}
	out, err = c.kubectl(ctx, "exec", pod, "--", "hostname")
	if err := says(err, "hostname in "+pod, out, pod); err != nil {
		return err
	}
	return until(ctx, 30*time.Second, func() error {
		_, err := c.kubectl(ctx, "exec", pod, "--", "/agnhost", "connect", "--timeout=2s",
			"kubernetes.default.svc.cluster.local:443")
		return err
	})
}

// show returns an error with the last lines of the node's console and of the logs of its agent and runtime.
func (c *cluster) show(ctx context.Context) error {
	var all strings.Builder
	for _, args := range [][]string{
		{"docker", "logs", "--tail", "15", c.node()},
		{"docker", "exec", c.node(), "sh", "-c",
			"systemctl --failed --no-legend; journalctl -u kubelet --no-pager | tail -60; crictl ps -a"},
	} {
		out, err := c.l.do(ctx, args...)
		if err != nil {
			out = err.Error()
		}
		all.WriteString(out)
	}
	return errors.New(all.String())
}
