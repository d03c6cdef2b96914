// Package support is the command that collects what helps to understand a problem of the node in one archive.
//
// It owns the list of what is collected. It collects no Secret, ConfigMap, key, kubeconfig or manifest, and leaves
// out what in pods may hold passwords: environment variables, arguments, labels, annotations and termination messages.
// Texts such as the journal are searched for what looks like a secret. It only reads. A crash leaves an incomplete
// archive behind.
package support

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/agent/podapi"
	"github.com/nodelet/nodelet/cmd/nodelet/command"
	"github.com/nodelet/nodelet/cmd/nodelet/command/check"
	"github.com/nodelet/nodelet/cmd/nodelet/command/status"
	"github.com/nodelet/nodelet/config"
	podutil "github.com/nodelet/nodelet/kube/pod"
)

// Command is `nodelet support`.
func Command() *command.Command {
	return &command.Command{
		Name:    "support",
		Args:    "[FILE]",
		MaxArgs: 1,
		Short:   "write an archive for a problem report",
		Long: `The archive has: versions, nodelet status and explain, the Node object, the pods without their environment,
arguments, labels, annotations and termination messages, the configuration, the results of nodelet check, the
journal of the units, and the mount table, pressure and limits of the machine. It has no Secrets, ConfigMaps, keys,
kubeconfigs or manifests, but the names and addresses of nodes, pods and images. In the journal, what looks like a
secret is replaced. Look at the archive before you send it.`,
		Setup: func(flags *pflag.FlagSet) command.Run {
			rootDir := command.RootDirFlag(flags)
			since := flags.Duration("since", time.Hour, "how much of the journal to collect")
			return func(c command.Call) error {
				file := "nodelet-support-" + time.Now().UTC().Format("20060102-150405") + ".tar.gz"
				if len(c.Args) > 0 {
					file = c.Args[0]
				}
				f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
				if err != nil {
					return fmt.Errorf("create the archive: %w", err)
				}
				a := newArchive(f)
				collect(c, a, *rootDir, *since)
				if err := errors.Join(a.close(), f.Close()); err != nil {
					return fmt.Errorf("write the archive: %w", err)
				}
				fmt.Fprintf(c.Out, "%s has %d files; look at it before you send it\n", file, a.files)
				return nil
			}
		},
	}
}

// collect adds everything to an archive. What cannot be had is there as its error.
func collect(c command.Call, a *archive, rootDir string, since time.Duration) {
	a.text("version.txt", config.VersionText())
	a.json("status.json", status.Collect(c, rootDir), nil)
	client := podapi.NewClient(rootDir)
	node, err := client.Node(c.Context)
	a.json("node.json", node, err)
	explained, err := client.Explain(c.Context)
	for _, e := range explained {
		withoutOutput(e)
	}
	a.json("explain.json", explained, err)
	pods, err := client.Pods(c.Context)
	for i, p := range pods {
		pods[i] = withoutSecrets(p)
	}
	a.json("pods.json", pods, err)
	configuration, err := client.Configuration(c.Context)
	a.json("configuration.json", configuration, err)
	checks, err := check.Present(c)
	a.json("check.json", checks, err)
	for _, file := range []string{
		"/proc/self/mountinfo", "/proc/meminfo", "/proc/loadavg", "/proc/swaps", "/proc/cgroups", "/proc/version",
		"/proc/pressure/cpu", "/proc/pressure/memory", "/proc/pressure/io", "/etc/os-release",
	} {
		text, err := os.ReadFile(filepath.Join("/", c.Root, file))
		if err == nil {
			a.text(path.Base(path.Dir(file))+"-"+path.Base(file)+".txt", string(text))
		}
	}
	from := fmt.Sprintf("-%ds", int(since.Seconds()))
	for _, unit := range []string{"nodelet", "kubelet", "containerd", "crio"} {
		a.output(c.Context, "journal-"+unit+".txt",
			"journalctl", "--no-pager", "-o", "short-precise", "--since", from, "-u", unit)
	}
	for _, unit := range []string{"nodelet.service", "kubelet.service"} {
		a.output(c.Context, unit+".txt", "systemctl", "status", "--no-pager", "--lines=0", unit)
	}
}

// withoutOutput removes the termination messages, and the commands and the output of probes, which may have passwords.
func withoutOutput(e *agent.Explanation) {
	for i := range e.Ends {
		e.Ends[i].Message = ""
	}
	for i, w := range e.Waits {
		if w.Probe {
			e.Waits[i].Why, _, _ = strings.Cut(w.Why, ": ")
		}
	}
}

// withoutSecrets returns a pod without the fields in which users put passwords, and without termination messages and
// the commands and output of hooks. The runtime's error stays where a container could not be started.
func withoutSecrets(p *corev1.Pod) *corev1.Pod {
	out := &corev1.Pod{Status: *p.Status.DeepCopy()}
	for s := range podutil.ContainerStatuses(&out.Status) {
		for _, state := range []corev1.ContainerState{s.State, s.LastTerminationState} {
			if end := state.Terminated; end != nil && !podutil.Moment(end.StartedAt).IsZero() {
				end.Message = ""
			}
			if wait := state.Waiting; wait != nil && wait.Reason == podutil.ReasonPostStartHook {
				wait.Message = ""
			}
		}
	}
	out.ObjectMeta = metav1.ObjectMeta{
		Namespace:         p.Namespace,
		Name:              p.Name,
		UID:               p.UID,
		CreationTimestamp: p.CreationTimestamp,
		DeletionTimestamp: p.DeletionTimestamp,
	}
	out.Spec = corev1.PodSpec{
		NodeName:      p.Spec.NodeName,
		RestartPolicy: p.Spec.RestartPolicy,
		HostNetwork:   p.Spec.HostNetwork,
	}
	bare := func(all []corev1.Container) []corev1.Container {
		var kept []corev1.Container
		for _, c := range all {
			kept = append(kept, corev1.Container{
				Name:            c.Name,
				Image:           c.Image,
				ImagePullPolicy: c.ImagePullPolicy,
				Resources:       c.Resources,
				RestartPolicy:   c.RestartPolicy,
			})
		}
		return kept
	}
	out.Spec.InitContainers, out.Spec.Containers = bare(p.Spec.InitContainers), bare(p.Spec.Containers)
	return out
}

// inQuotes matches a string up to its last quotes, also in quotes within quotes as in structured logs.
const inQuotes = `\\"(?:[^\\"\n]|\\\\\\?.)*|"(?:[^\\"\n]|\\.)*`

// secretNames matches the last words of the names of secrets.
const secretNames = `(?:auth|authorization|` +
	`(?:token|password|passwd|passphrase|secret|credential|dockercfg|dockerconfigjson|key[-_]?data|` +
	`(?:api|access|private|secret)[-_]?key)s?(?:[-_]?\d+)?)`

// commands matches what comes before the command of a hook or a probe, or before its output, in a log.
const commands = `exec lifecycle hook \(|execCommand"?[=:]|\bcmd\\*"?[=:]\\*[\["]|command timed out: ` +
	`|exec(?:sync)? for \S+ with command |exec probe response: |"probe (?:failed|succeeded)[^\n]*?\boutput"?[=:]` +
	`|(?:liveness|readiness|startup) probe (?:failed|warning|errored and resulted in \w+ state): `

// wholeText matches the rest of a line and the lines that continue a text in it, which klog indents by a tab.
// journalctl shows that as eight spaces.
const wholeText = `.*(?:\n.*(?:\t| {8}).*)*`

// secrets matches what looks like a secret in the log of another program: what follows the name of one, and the
// environment of containers, which runtimes log at level debug, and the command or the output of a hook or a probe. The
// agent, which is the same program, never needs it.
var secrets = sync.OnceValue(func() *regexp.Regexp {
	return regexp.MustCompile(`(?i)` +
		`(` + secretNames + `(?:\\?["'])?\s*[:=]\s*)` +
		`(?:` + inQuotes + `|'[^'\n]*|(?:bearer |basic )?[^\s"',;&]+)` +
		`|(bearer )[A-Za-z0-9._~+/-]{8,}|-----BEGIN [A-Z ]*PRIVATE KEY-----[^-]*(?:-----END [A-Z ]*PRIVATE KEY-----)?` +
		`|(manifest-url-header[= ]["']?)[^\s"']+(?: [^-\s"'][^\s"']*)*|(://[^\s/@:]*:)[^\s/@]+(@)` +
		`|(key:\s*\\?"[^"\\\n]*\\?"\s+value:\s*)(?:` + inQuotes + `)` +
		`|(KeyValue\{Key:[^,\n]*,\s*Value:).*?(,\})` +
		`|(` + commands + `)` + wholeText)
})

// redact replaces what looks like a secret.
func redact(text []byte) []byte {
	return secrets().ReplaceAll(text, []byte("${1}${2}${3}${4}${6}${7}${9}[redacted]${5}${8}"))
}

// commandToEnd matches the command or the output of a hook or a probe, and all that follows it. In a text of its own,
// unlike in a log, no line says whether it continues the one before.
var commandToEnd = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?is)(` + commands + `).*`) })

// secretName matches the name of a secret.
var secretName = sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(`(?i)` + secretNames + `$`) })

// redactTree replaces what looks like a secret in the texts of decoded JSON, which it changes. Redacted JSON would not
// be JSON any more.
func redactTree(tree any) any {
	switch v := tree.(type) {
	case string:
		return string(redact(commandToEnd().ReplaceAll([]byte(v), []byte("${1}[redacted]"))))
	case []any:
		for i, e := range v {
			v[i] = redactTree(e)
		}
	case map[string]any:
		for name, e := range v {
			v[name] = redactTree(e)
			if _, isText := e.(string); isText && secretName().MatchString(name) {
				v[name] = "[redacted]"
			}
		}
	}
	return tree
}

// archive is a compressed tar that keeps its first error.
type archive struct {
	gz    *gzip.Writer
	tw    *tar.Writer
	files int
	err   error
}

func newArchive(w io.Writer) *archive {
	gz := gzip.NewWriter(w)
	return &archive{gz: gz, tw: tar.NewWriter(gz)}
}

func (a *archive) text(name, text string) { a.add(name, redact([]byte(text))) }

// add adds a file as it is.
func (a *archive) add(name string, body []byte) {
	h := &tar.Header{Name: "nodelet-support/" + name, Mode: 0o600, Size: int64(len(body)), ModTime: time.Now()}
	if a.err == nil {
		a.err = a.tw.WriteHeader(h)
	}
	if a.err == nil {
		_, a.err = a.tw.Write(body)
	}
	a.files++
}

// json adds a value, or the error with which it could not be had.
func (a *archive) json(name string, v any, err error) {
	text, err := redactedJSON(v, err)
	if err != nil {
		a.text(name+".error.txt", err.Error()+"\n")
		return
	}
	a.add(name, append(text, '\n'))
}

// redactedJSON returns a value as JSON, unless there is an error already.
func redactedJSON(v any, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	text, err := json.Marshal(v)
	if err != nil {
		return nil, err
	}
	var tree any
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber() // a float64 has not all digits
	if err := decoder.Decode(&tree); err != nil {
		return nil, err
	}
	return json.MarshalIndent(redactTree(tree), "", "  ")
}

// outputLimit bounds how long a program may take.
const outputLimit = 20 * time.Second

// output adds what a program prints, if it is there.
func (a *archive) output(ctx context.Context, name, program string, args ...string) {
	ctx, cancel := context.WithTimeout(ctx, outputLimit)
	defer cancel()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		fmt.Fprintf(&out, "\n(%v)\n", err)
	}
	a.text(name, out.String())
}

func (a *archive) close() error { return errors.Join(a.err, a.tw.Close(), a.gz.Close()) }
