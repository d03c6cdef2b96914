// Package status is the command that shows the state of the node on one screen.
//
// It asks systemd, and the running agent over its socket below the root directory. It reads the node's certificates. It
// changes nothing. command/app lists it, and command/support packs what it finds. It has no state, so a crash leaves
// nothing behind.
package status

import (
	"cmp"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"
	"k8s.io/client-go/util/cert"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/agent/podapi"
	"github.com/nodelet/nodelet/cmd/nodelet/command"
	"github.com/nodelet/nodelet/config"
	"github.com/nodelet/nodelet/kube/certs"
	"github.com/nodelet/nodelet/systemd"
)

// Report is the state of the node.
type Report struct {
	Program string          `json:"program"`
	Units   []systemd.Agent `json:"units,omitempty"`
	// Error says why the agent does not answer; empty if it does.
	Error      string      `json:"error,omitempty"`
	Node       string      `json:"node,omitempty"`
	Ready      bool        `json:"ready"`
	Version    string      `json:"version,omitempty"`
	Runtime    string      `json:"runtime,omitempty"`
	Kernel     string      `json:"kernel,omitempty"`
	OS         string      `json:"os,omitempty"`
	Addresses  []string    `json:"addresses,omitempty"`
	Conditions []condition `json:"conditions,omitempty"`
	// Certificates are those in CertificateDir, the directory of the agent; if it does not answer, the default one.
	Certificates   []certificate `json:"certificates,omitempty"`
	CertificateDir string        `json:"certificateDir"`
	// Waiting says why the pods are not known, such as that the container runtime does not answer.
	Waiting   string   `json:"waiting,omitempty"`
	Pods      int      `json:"pods"`
	PodsReady int      `json:"podsReady"`
	NotReady  []string `json:"notReady,omitempty"`
	// Problems are those of the sources of pods, such as manifests that are no valid pods.
	Problems []string `json:"problems,omitempty"`
}

type condition struct {
	Type    string `json:"type"`
	Status  string `json:"status"`
	Message string `json:"message,omitempty"`
}

type certificate struct {
	Name  string    `json:"name"`
	Until time.Time `json:"until"`
}

// Command is `nodelet status`.
func Command() *command.Command {
	return &command.Command{
		Name:  "status",
		Short: "show the state of the node on one screen",
		Exit:  "Exit code: 0 if the node is ready, 1 if not.",
		Setup: func(flags *pflag.FlagSet) command.Run {
			rootDir := command.RootDirFlag(flags)
			output := command.OutputFlag(flags)
			return func(c command.Call) error {
				r := Collect(c, *rootDir)
				var err error
				if output.Structured() {
					err = output.Print(c.Out, r)
				} else {
					err = r.write(c.Out, time.Now())
				}
				if err == nil && !r.Ready {
					return &command.ExitError{Code: 1}
				}
				return err
			}
		},
	}
}

// Collect asks for the state of the node.
func Collect(c command.Call, rootDir string) *Report {
	r := &Report{Program: strings.TrimSpace(config.VersionText())}
	i := &systemd.Installer{Root: c.Root}
	if i.Booted() == nil {
		r.Units, _ = i.Agents(c.Context) // without systemctl there is nothing to say
	}
	client := podapi.NewClient(rootDir)
	node, err := client.Node(c.Context)
	if err != nil {
		r.Error = err.Error()
		r.readCertificates(c.Root, config.DefaultCertificates)
		return r
	}
	r.describe(node)
	dir, _ := client.CertificateDir(c.Context) // an agent of an earlier version does not tell it
	r.readCertificates(c.Root, cmp.Or(dir, config.DefaultCertificates))
	pods, err := client.Explain(c.Context)
	if err != nil {
		r.Waiting = err.Error()
	}
	r.count(pods)
	r.Problems, _ = client.Problems(c.Context) // an agent that does not answer has been reported
	return r
}

func (r *Report) describe(node *corev1.Node) {
	info := node.Status.NodeInfo
	r.Node = node.Name
	r.Version, r.Runtime = info.KubeletVersion, info.ContainerRuntimeVersion
	r.Kernel, r.OS = info.KernelVersion, info.OSImage
	for _, a := range node.Status.Addresses {
		if a.Address != node.Name {
			r.Addresses = append(r.Addresses, a.Address)
		}
	}
	for _, c := range node.Status.Conditions {
		r.Ready = r.Ready || c.Type == corev1.NodeReady && c.Status == corev1.ConditionTrue
		r.Conditions = append(r.Conditions, condition{string(c.Type), string(c.Status), c.Message})
	}
}

func (r *Report) count(pods []*agent.Explanation) {
	r.Pods = len(pods)
	for _, p := range pods {
		if p.NeedsNothing() {
			r.PodsReady++
		} else {
			r.NotReady = append(r.NotReady, p.Pod)
		}
	}
}

// readCertificates reads the ends of the node's certificates.
func (r *Report) readCertificates(root, dir string) {
	r.CertificateDir = dir
	for _, name := range []string{"client", "server"} {
		text, err := os.ReadFile(certs.Current(filepath.Join(root, dir), "kubelet-"+name))
		if err != nil {
			continue
		}
		if chain, err := cert.ParseCertsPEM(text); err == nil {
			r.Certificates = append(r.Certificates, certificate{name, chain[0].NotAfter})
		}
	}
}

// shownPods bounds the pods that the text names.
const shownPods = 5

func (r *Report) write(out io.Writer, now time.Time) error {
	var b strings.Builder
	line := func(name, format string, args ...any) {
		fmt.Fprintf(&b, "%-13s %s\n", name, fmt.Sprintf(format, args...))
	}
	for _, u := range r.Units {
		line("unit", "%s: %s", u.Unit, u.State)
		if u.PID != "" {
			line("", "%s (pid %s) since %s, restarted %s times", u.Program, u.PID, u.Since, u.Restarts)
		}
		if u.Status != "" {
			line("", "%s", u.Status)
		}
	}
	if r.Error != "" {
		line("agent", "%s", r.Error)
		line("program", "%s", r.Program)
		r.writeCertificates(line, now)
		_, err := io.WriteString(out, b.String())
		return err
	}
	line("node", "%s (%s)", r.Node, strings.Join(r.Addresses, ", "))
	line("agent", "%s", r.Version)
	line("runtime", "%s", r.Runtime)
	line("system", "%s, kernel %s", r.OS, r.Kernel)
	for _, c := range r.Conditions {
		if good := "False"; c.Type == string(corev1.NodeReady) {
			line("Ready", "%s: %s", c.Status, c.Message)
		} else if c.Status != good {
			line(c.Type, "%s: %s", c.Status, c.Message)
		}
	}
	r.writeCertificates(line, now)
	if r.Waiting != "" {
		line("pods", "%s", r.Waiting)
	} else {
		line("pods", "%d of %d ready", r.PodsReady, r.Pods)
	}
	for _, problem := range r.Problems {
		line("problem", "%s", problem)
	}
	if len(r.NotReady) > 0 {
		more := ""
		if n := len(r.NotReady) - shownPods; n > 0 {
			more = fmt.Sprintf(" and %d more", n)
		}
		line("not ready", "%s%s: see nodelet explain --not-ready",
			strings.Join(r.NotReady[:min(shownPods, len(r.NotReady))], ", "), more)
	}
	_, err := io.WriteString(out, b.String())
	return err
}

func (r *Report) writeCertificates(line func(name, format string, args ...any), now time.Time) {
	for _, c := range r.Certificates {
		if left := c.Until.Sub(now); left < 0 {
			line("certificate", "%s, expired at %s", c.Name, c.Until.Format(time.RFC3339))
		} else {
			line("certificate", "%s, valid for %s", c.Name, duration.HumanDuration(left))
		}
	}
	if r.Error != "" && len(r.Certificates) == 0 {
		line("certificate", "none in %s, the default of --cert-dir", r.CertificateDir)
	}
}
