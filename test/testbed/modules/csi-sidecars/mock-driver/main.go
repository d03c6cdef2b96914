// Command mock-driver serves the mock CSI driver of Kubernetes' own test suite as a program of its own. It takes the
// flags that the suite gives to the driver in a pod; those that change nothing here are taken and left.
package main

import (
	"errors"
	"flag"
	"io"
	"io/fs"
	"net"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"k8s.io/klog/v2"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/driver"
	"k8s.io/kubernetes/test/e2e/storage/drivers/csi-test/mock/service"
)

func main() {
	config := service.Config{}
	klog.InitFlags(nil)
	flag.StringVar(&config.DriverName, "drivername", service.Name, "the driver's `name`")
	flag.Int64Var(&config.AttachLimit, "attach-limit", 0, "`number` of volumes the node can attach; 0: any")
	flag.BoolVar(&config.EnableTopology, "enable-topology", false, "tell where volumes can be reached from")
	flag.BoolVar(&config.NodeExpansionRequired, "node-expand-required", false, "volumes are expanded on the node as well")
	attach := flag.Bool("enable-attach", false, "volumes must be attached")
	endpoint := flag.String("endpoint", "/csi/csi.sock", "unix `socket` to serve at")
	elsewhere := flag.String("proxy-endpoint", "",
		"TCP `address` at which another driver's connections come in; it is served in place of the mock driver")
	_ = flag.String("nodeid", "", "taken and left: the mock driver calls its node by the driver's name")
	_ = flag.String("statedir", "", "taken and left: the mock driver keeps no state")
	flag.Parse()
	config.DisableAttach = !*attach
	if err := run(config, *endpoint, strings.TrimPrefix(*elsewhere, "tcp://")); err != nil {
		klog.Fatalf("serve CSI at %s: %v", *endpoint, err)
	}
}

func run(config service.Config, endpoint, elsewhere string) error {
	if err := os.Remove(endpoint); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	listener, err := net.Listen("unix", endpoint)
	if err != nil {
		return err
	}
	defer listener.Close() // it takes the socket away
	end := make(chan os.Signal, 1)
	signal.Notify(end, syscall.SIGTERM, os.Interrupt)
	if elsewhere == "" {
		s := service.New(config)
		if err := driver.NewCSIDriver(&driver.CSIDriverServers{Controller: s, Identity: s, Node: s}).Start(listener,
			nil); err != nil {
			return err
		}
		<-end
		return nil
	}
	peers, err := net.Listen("tcp", elsewhere)
	if err != nil {
		return err
	}
	broken := make(chan error, 1)
	go func() { broken <- relay(listener, peers) }()
	select {
	case err := <-broken:
		return err
	case <-end:
		return nil
	}
}

// relay joins each client with a connection that the driver has opened, in the order in which they come.
func relay(clients, peers net.Listener) error {
	for {
		client, err := clients.Accept()
		if err != nil {
			return err
		}
		peer, err := peers.Accept()
		if err != nil {
			return err
		}
		go join(client, peer)
	}
}

// join copies in both directions until one side ends.
func join(a, b net.Conn) {
	done := make(chan struct{}, 2)
	for _, pair := range [][2]net.Conn{{a, b}, {b, a}} {
		go func() {
			_, _ = io.Copy(pair[0], pair[1]) // a connection that breaks is at its end
			done <- struct{}{}
		}()
	}
	<-done
	_, _ = a.Close(), b.Close()
}
