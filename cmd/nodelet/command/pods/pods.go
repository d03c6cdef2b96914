// Package pods has the commands pods, logs and exec, which work without an API server.
//
// They ask the running agent over its socket below the root directory; the streams of exec go directly to the container
// runtime. They change nothing apart from what a command in a container changes. command/app lists them.
//
// They have no state. A crash leaves at most the command that exec has started: it may go on in its container.
package pods

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/util/duration"

	"github.com/nodelet/nodelet/agent/podapi"
	"github.com/nodelet/nodelet/cmd/nodelet/command"
	podutil "github.com/nodelet/nodelet/kube/pod"
	"github.com/nodelet/nodelet/kube/server"
)

// Commands are pods, logs and exec.
func Commands() []*command.Command { return []*command.Command{list(), logs(), execute()} }

func list() *command.Command {
	return &command.Command{
		Name:    "pods",
		Args:    "[NAMESPACE/POD | POD]...",
		MaxArgs: -1,
		Short:   "list the pods of this node, without an API server",
		Setup: func(flags *pflag.FlagSet) command.Run {
			rootDir := command.RootDirFlag(flags)
			namespace := flags.StringP("namespace", "n", "", "only pods of this `NAMESPACE`")
			_ = flags.BoolP("all-namespaces", "A", false, "pods of all namespaces, the default")
			output := command.OutputFlag(flags, "wide")
			return func(c command.Call) error {
				all, err := podapi.NewClient(*rootDir).Pods(c.Context)
				if err != nil {
					return err
				}
				known := names(all)
				all = slices.DeleteFunc(all, func(p *corev1.Pod) bool {
					return *namespace != "" && p.Namespace != *namespace ||
						len(c.Args) > 0 && !slices.ContainsFunc(c.Args, func(name string) bool { return called(p, name) })
				})
				if len(all) == 0 && len(c.Args) > 0 {
					return command.NoPod(c.Args, known)
				}
				if output.Structured() {
					return output.Print(c.Out, podList{Kind: "PodList", APIVersion: "v1", Items: all})
				}
				return table(c, all, output.Wide())
			}
		},
	}
}

// podList has the JSON of a PodList.
type podList struct {
	Kind       string        `json:"kind"`
	APIVersion string        `json:"apiVersion"`
	Items      []*corev1.Pod `json:"items"`
}

// called reports whether name is that of the pod, with or without its namespace.
func called(p *corev1.Pod, name string) bool {
	return name == p.Name || name == p.Namespace+"/"+p.Name
}

// table prints the columns of kubectl get pods.
func table(c command.Call, all []*corev1.Pod, wide bool) error {
	w := tabwriter.NewWriter(c.Out, 0, 8, 3, ' ', 0)
	header := "NAMESPACE\tNAME\tREADY\tSTATUS\tRESTARTS\tAGE"
	if wide {
		header += "\tIP\tUID\tCONTAINERS"
	}
	fmt.Fprintln(w, header)
	now := time.Now()
	for _, p := range all {
		var names []string
		for _, container := range p.Spec.Containers {
			names = append(names, container.Name)
		}
		m := summarize(p)
		fmt.Fprintf(w, "%s\t%s\t%d/%d\t%s\t%s\t%s",
			p.Namespace, p.Name, m.ready, m.total, m.state, m.restartsText(now), age(p, now))
		if wide {
			fmt.Fprintf(w, "\t%s\t%s\t%s", p.Status.PodIP, p.UID, strings.Join(names, ","))
		}
		fmt.Fprintln(w)
	}
	return w.Flush()
}

// age is how long a pod has existed. A static pod has no creation time; it counts from the agent's first look at it.
func age(p *corev1.Pod, now time.Time) string {
	begin := &p.CreationTimestamp
	if begin.IsZero() {
		begin = p.Status.StartTime
	}
	if begin.IsZero() {
		return "-"
	}
	return duration.HumanDuration(now.Sub(begin.Time))
}

// target finds the container that the user means. Among pods of one namespace and name, such as a static pod and one of
// the API server, the agent chooses.
func target(ctx context.Context, client *podapi.Client, namespace, name, container string) (server.Container, error) {
	all, err := client.Pods(ctx)
	if err != nil {
		return server.Container{}, err
	}
	var found []*corev1.Pod
	for _, p := range all {
		if called(p, name) && (namespace == "" || p.Namespace == namespace) {
			found = append(found, p)
		}
	}
	if len(found) == 0 {
		return server.Container{}, command.NoPod([]string{name}, names(all))
	}
	p := found[0]
	if slices.ContainsFunc(found, func(other *corev1.Pod) bool { return other.Namespace != p.Namespace }) {
		return server.Container{}, fmt.Errorf("%d pods are called %s: name the namespace with -n", len(found), name)
	}
	container = cmp.Or(container, p.Annotations["kubectl.kubernetes.io/default-container"], p.Spec.Containers[0].Name)
	if _, c := podutil.Container(&p.Spec, container); c == nil {
		return server.Container{}, fmt.Errorf("pod %s has no container %s; its containers are %s",
			name, container, strings.Join(containers(p), ", "))
	}
	return server.Container{Namespace: p.Namespace, Pod: p.Name, Name: container}, nil
}

func names(pods []*corev1.Pod) []string {
	var all []string
	for _, p := range pods {
		all = append(all, p.Name)
	}
	return all
}

func containers(p *corev1.Pod) []string {
	var names []string
	for _, s := range slices.Concat(p.Status.InitContainerStatuses, p.Status.ContainerStatuses) {
		names = append(names, s.Name)
	}
	return names
}

// containerFlags declares the flags that say which container of a pod is meant.
func containerFlags(flags *pflag.FlagSet) (namespace, container *string) {
	return flags.StringP("namespace", "n", "", "`NAMESPACE` of the pod"),
		flags.StringP("container", "c", "", "`NAME` of the container (default: that of the annotation "+
			"kubectl.kubernetes.io/default-container, or the first)")
}

func logs() *command.Command {
	return &command.Command{
		Name:    "logs",
		Args:    "POD [CONTAINER]",
		MaxArgs: 2,
		Short:   "print the log of a container, without an API server",
		Setup: func(flags *pflag.FlagSet) command.Run {
			rootDir := command.RootDirFlag(flags)
			namespace, container := containerFlags(flags)
			o := &corev1.PodLogOptions{}
			flags.BoolVarP(&o.Follow, "follow", "f", false, "go on until the container ends")
			flags.BoolVarP(&o.Previous, "previous", "p", false, "print the log of the previous instance")
			flags.BoolVar(&o.Timestamps, "timestamps", false, "print the time of each line")
			tail := flags.Int64("tail", -1, "print only the last `NUMBER` of lines; -1 prints all")
			return func(c command.Call) error {
				if len(c.Args) == 0 {
					return command.Usagef("logs: which pod? (nodelet pods lists them)")
				}
				if len(c.Args) == 2 {
					*container = c.Args[1]
				}
				if *tail >= 0 {
					o.TailLines = tail
				}
				client := podapi.NewClient(*rootDir)
				of, err := target(c.Context, client, *namespace, c.Args[0], *container)
				if err == nil {
					err = client.Logs(c.Context, of, o, c.Out)
				}
				if errors.Is(err, context.Canceled) {
					return nil
				}
				return err
			}
		},
	}
}
