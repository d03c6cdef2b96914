// Command hostdriver runs the CSI driver of package fake, for tests with a real node. It ends with SIGTERM or SIGINT,
// or is killed; its volumes stay as they are.
package main

import (
	"flag"
	"fmt"
	"os"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/nodelet/nodelet/test/csi/fake"
)

func main() {
	var c fake.Config
	flag.StringVar(&c.Name, "name", "host.csi.nodelet.test", "the driver's name")
	flag.StringVar(&c.NodeID, "node", "", "the node's name")
	flag.StringVar(&c.State, "state", "", "directory of the volumes")
	flag.StringVar(&c.Socket, "socket", "", "unix socket to serve at")
	flag.StringVar(&c.Registry, "registry", "", "the agent's plugins_registry directory; empty: do not register")
	flag.BoolVar(&c.Loop, "loop", true, "keep volumes as ext4 images on loop devices")
	flag.BoolVar(&c.Condition, "condition", false, "report the condition of volumes")
	flag.Int64Var(&c.MaxVolumes, "max-volumes", 0, "how many volumes the node can attach; 0: any number")
	flag.Parse()
	if c.NodeID == "" || c.State == "" || c.Socket == "" {
		fmt.Fprintln(os.Stderr, "hostdriver: --node, --state and --socket are needed")
		os.Exit(2)
	}
	d, err := fake.Start(c)
	if err != nil {
		fmt.Fprintln(os.Stderr, "hostdriver:", err)
		os.Exit(1)
	}
	end := make(chan os.Signal, 1)
	signal.Notify(end, unix.SIGTERM, unix.SIGINT)
	<-end
	d.Close()
}
