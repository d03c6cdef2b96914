package testbed

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

func (tb *Testbed) apiIP() string { return address(tb.x, 2).String() }

// HostIP returns an address of the machine that all nodes can reach.
func (tb *Testbed) HostIP() string { return address(tb.x, 1).String() }

func (tb *Testbed) apiURL() string { return "https://" + tb.apiIP() + ":6443" }

// startControlPlane starts the control plane and waits until the default service account exists, which pods need.
func (tb *Testbed) startControlPlane(ctx context.Context) error {
	if err := tb.launchControl(roleEtcd, tb.etcdArgs()); err != nil {
		return err
	}
	if err := tb.StartAPIServer(ctx); err != nil {
		return err
	}
	if err := tb.launchControl(roleController, tb.controllerArgs()); err != nil {
		return err
	}
	if err := tb.launchControl(roleScheduler, tb.schedulerArgs()); err != nil {
		return err
	}
	if _, err := tb.Kubectl(ctx, "wait", "--for=create", "serviceaccount/default",
		"--timeout="+startLimit.String()); err != nil {
		return fmt.Errorf("wait for the default service account: %w\n%s", err, tail(tb.log(roleController), 20))
	}
	return nil
}

func (tb *Testbed) launchControl(role string, argv []string) error {
	return tb.launch(role, launch{netns: tb.netns(), dir: tb.dir(), argv: argv})
}

// StartAPIServer starts the API server and waits until it is ready.
func (tb *Testbed) StartAPIServer(ctx context.Context) error {
	if err := tb.launchControl(roleAPIServer, tb.apiServerArgs()); err != nil {
		return err
	}
	ca, err := os.ReadFile(tb.pki("ca.crt"))
	if err != nil {
		return err
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(ca)
	transport := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}}
	defer transport.CloseIdleConnections()
	client := &http.Client{Transport: transport, Timeout: 10 * time.Second}
	return tb.await(ctx, roleAPIServer, startLimit, func(ctx context.Context) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, tb.apiURL()+"/readyz", nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			return fmt.Errorf("GET /readyz: %s", resp.Status)
		}
		return nil
	})
}

// StopAPIServer kills the API server, as a crash would: the connections of clients break.
func (tb *Testbed) StopAPIServer() error {
	return tb.stopRole(roleAPIServer, unix.SIGKILL, 10*time.Second)
}

// CopyEtcd copies the data of etcd to the directory to, which must not exist. etcd is stopped meanwhile; the copy is
// what a power failure would leave.
func CopyEtcd(tb *Testbed, to string) error {
	p, err := tb.proc(roleEtcd)
	if err != nil {
		return err
	}
	if err := p.Signal(unix.SIGSTOP); err != nil {
		return fmt.Errorf("stop etcd: %w", err)
	}
	err = os.CopyFS(to, os.DirFS(tb.etcdDir()))
	return errors.Join(err, p.Signal(unix.SIGCONT))
}

// RestoreEtcd kills the control plane, replaces the data of etcd by a copy that CopyEtcd has made, and starts the
// control plane again. between is called when the control plane does not run.
func RestoreEtcd(ctx context.Context, tb *Testbed, from string, between func()) error {
	for _, role := range []string{roleScheduler, roleController, roleAPIServer, roleEtcd} {
		if err := tb.stopRole(role, unix.SIGKILL, 10*time.Second); err != nil {
			return err
		}
	}
	between()
	if err := os.RemoveAll(tb.etcdDir()); err != nil {
		return err
	}
	if err := os.Rename(from, tb.etcdDir()); err != nil {
		return err
	}
	return tb.startControlPlane(ctx)
}

// findEtcd returns the program etcd. That of Debian's package is enough for a lean testbed. It is too old to report its
// progress, without which a watch of the API server from now on may end after three seconds.
func findEtcd(ctx context.Context, tb *Testbed) (string, error) {
	if tb.opts.Shape == LeanShape {
		return tb.cache.DebianFile(ctx, "etcd-server", "usr/bin/etcd")
	}
	return tb.cache.Program(ctx, "etcd", "etcd")
}

func (n names) etcdDir() string { return filepath.Join(n.dir(), "etcd") }

// APIServerPID returns the process ID of the API server, or 0 if it does not run.
func (tb *Testbed) APIServerPID() int {
	p, err := tb.proc(roleAPIServer)
	if err != nil || !p.Alive() {
		return 0
	}
	return p.PID
}

// RestartScheduler restarts the scheduler. Some time after a crash of the API server, the scheduler may exit with
// "scheduler cache is corrupted".
func (tb *Testbed) RestartScheduler() error {
	if err := tb.stopRole(roleScheduler, unix.SIGKILL, 10*time.Second); err != nil {
		return err
	}
	return tb.launchControl(roleScheduler, tb.schedulerArgs())
}

func (tb *Testbed) pki(file string) string { return filepath.Join(tb.pkiDir(), file) }

// nodeMask returns the controller manager's flag for the size of a node's range of pod addresses.
func nodeMask(o *Options) string {
	if o.DualStack {
		return fmt.Sprintf("--node-cidr-mask-size-ipv4=%d", nodePodMask)
	}
	return fmt.Sprintf("--node-cidr-mask-size=%d", nodePodMask)
}

// both returns the values of both address families, or only that of IPv4 without Options.DualStack.
func (tb *Testbed) both(v4, v6 string) string {
	if tb.opts.DualStack {
		return v4 + "," + v6
	}
	return v4
}

func (tb *Testbed) etcdArgs() []string {
	return []string{
		tb.bins.etcd,
		"--name=testbed",
		"--data-dir=" + tb.etcdDir(),
		"--listen-client-urls=http://127.0.0.1:2379",
		"--advertise-client-urls=http://127.0.0.1:2379",
		"--listen-peer-urls=http://127.0.0.1:2380",
		"--initial-advertise-peer-urls=http://127.0.0.1:2380",
		"--initial-cluster=testbed=http://127.0.0.1:2380",
		"--log-level=warn",
		"--logger=zap",
	}
}

func (tb *Testbed) apiServerArgs() []string {
	return append([]string{
		filepath.Join(tb.bins.kubernetes, "kube-apiserver"),
		"--etcd-servers=http://127.0.0.1:2379",
		"--advertise-address=" + tb.apiIP(),
		"--secure-port=6443",
		"--service-cluster-ip-range=" + tb.both(serviceCIDR, serviceCIDR6),
		"--allow-privileged=true",
		"--authorization-mode=Node,RBAC",
		"--enable-admission-plugins=NodeRestriction",
		"--enable-bootstrap-token-auth=true",
		"--client-ca-file=" + tb.pki("ca.crt"),
		"--tls-cert-file=" + tb.pki("apiserver.crt"),
		"--tls-private-key-file=" + tb.pki("apiserver.key"),
		"--kubelet-client-certificate=" + tb.pki("apiserver-kubelet-client.crt"),
		"--kubelet-client-key=" + tb.pki("apiserver-kubelet-client.key"),
		"--kubelet-preferred-address-types=InternalIP",
		"--service-account-issuer=https://kubernetes.default.svc." + ClusterDomain,
		"--service-account-key-file=" + tb.pki("service-accounts.key"),
		"--service-account-signing-key-file=" + tb.pki("service-accounts.key"),
		"--requestheader-client-ca-file=" + tb.pki("front-proxy-ca.crt"),
		"--requestheader-allowed-names=front-proxy-client",
		"--requestheader-username-headers=X-Remote-User",
		"--requestheader-group-headers=X-Remote-Group",
		"--requestheader-extra-headers-prefix=X-Remote-Extra-",
		"--proxy-client-cert-file=" + tb.pki("front-proxy-client.crt"),
		"--proxy-client-key-file=" + tb.pki("front-proxy-client.key"),
	}, tb.opts.APIServerArgs...)
}

func (tb *Testbed) controllerArgs() []string {
	config := tb.kubeconfig("controller-manager")
	return append([]string{
		filepath.Join(tb.bins.kubernetes, "kube-controller-manager"),
		"--kubeconfig=" + config,
		"--authentication-kubeconfig=" + config,
		"--authorization-kubeconfig=" + config,
		"--bind-address=127.0.0.1",
		"--leader-elect=false",
		"--controllers=*,bootstrap-signer-controller,token-cleaner-controller",
		"--use-service-account-credentials=true",
		"--service-account-private-key-file=" + tb.pki("service-accounts.key"),
		"--root-ca-file=" + tb.pki("ca.crt"),
		"--cluster-signing-cert-file=" + tb.pki("ca.crt"),
		"--cluster-signing-key-file=" + tb.pki("ca.key"),
		"--allocate-node-cidrs=true",
		"--cluster-cidr=" + tb.both(podCIDR, podCIDR6),
		nodeMask(&tb.opts),
		"--service-cluster-ip-range=" + tb.both(serviceCIDR, serviceCIDR6),
	}, tb.opts.ControllerArgs...)
}

func (tb *Testbed) schedulerArgs() []string {
	config := tb.kubeconfig("scheduler")
	return []string{
		filepath.Join(tb.bins.kubernetes, "kube-scheduler"),
		"--kubeconfig=" + config,
		"--authentication-kubeconfig=" + config,
		"--authorization-kubeconfig=" + config,
		"--bind-address=127.0.0.1",
		"--leader-elect=false",
	}
}
