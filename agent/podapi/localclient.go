package podapi

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/nodelet/nodelet/agent"
	"github.com/nodelet/nodelet/kube/server"
)

// answerLimit is how long the agent may take for an answer, except for logs and exec.
const answerLimit = 10 * time.Second

// Client asks the agent on this machine; see Local. Its methods return an error that says what to do if no agent
// answers.
type Client struct {
	socket string
	http   *http.Client
	limit  time.Duration // see answerLimit; tests shorten it
}

// NewClient returns a client for the agent with this root directory. It does not connect yet.
func NewClient(rootDir string) *Client {
	c := &Client{socket: filepath.Join(rootDir, localSocket), limit: answerLimit}
	c.http = &http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", c.socket)
		},
		DisableKeepAlives: true,
	}}
	return c
}

// Explain returns what the pods are waiting for.
func (c *Client) Explain(ctx context.Context) (all []*agent.Explanation, err error) {
	return all, c.get(ctx, "/explain", &all)
}

// Problems returns what is wrong with the sources of pods.
func (c *Client) Problems(ctx context.Context) (all []string, err error) {
	return all, c.get(ctx, "/problems", &all)
}

// Node returns the Node object as the agent has it.
func (c *Client) Node(ctx context.Context) (*corev1.Node, error) {
	node := &corev1.Node{}
	return node, c.get(ctx, "/node", node)
}

// Pods returns the pods that a source has, with their newest status.
func (c *Client) Pods(ctx context.Context) (all []*corev1.Pod, err error) {
	return all, c.get(ctx, "/pods", &all)
}

// Configuration returns the configuration in use as JSON, without secrets.
func (c *Client) Configuration(ctx context.Context) (raw json.RawMessage, err error) {
	return raw, c.get(ctx, "/configuration", &raw)
}

// CertificateDir returns where the agent keeps its certificates.
func (c *Client) CertificateDir(ctx context.Context) (dir string, err error) {
	return dir, c.get(ctx, "/certificates", &dir)
}

// Logs writes the log of a container to out. TailLines, Follow, Previous and Timestamps of the options count.
func (c *Client) Logs(ctx context.Context, of server.Container, o *corev1.PodLogOptions, out io.Writer) error {
	q := url.Values{}
	for name, on := range map[string]bool{"follow": o.Follow, "previous": o.Previous, "timestamps": o.Timestamps} {
		if on {
			q.Set(name, "true")
		}
	}
	if o.TailLines != nil {
		q.Set("tail", fmt.Sprint(*o.TailLines))
	}
	body, err := c.do(ctx, http.MethodGet, place("/logs", of)+"?"+q.Encode())
	if err != nil {
		return err
	}
	defer body.Close()
	if _, err := io.Copy(out, body); err != nil && ctx.Err() == nil {
		return fmt.Errorf("read the log: %w", err)
	}
	return nil
}

// Exec returns the URL at which the runtime serves the streams of a command. With a terminal there is no standard
// error.
func (c *Client) Exec(ctx context.Context, in server.Container, command []string, stdin, tty bool) (string, error) {
	q := url.Values{"command": command, "stdin": {fmt.Sprint(stdin)}, "tty": {fmt.Sprint(tty)}}
	body, err := c.do(ctx, http.MethodPost, place("/exec", in)+"?"+q.Encode())
	if err != nil {
		return "", err
	}
	defer body.Close()
	var at string
	return at, json.NewDecoder(body).Decode(&at)
}

func place(path string, c server.Container) string {
	for _, part := range []string{c.Namespace, c.Pod, c.Name} {
		path += "/" + url.PathEscape(part)
	}
	return path
}

// get decodes the JSON of an answer.
func (c *Client) get(ctx context.Context, path string, into any) error {
	silent := fmt.Errorf("no answer within %s: see journalctl -u nodelet -u kubelet", c.limit)
	ctx, cancel := context.WithTimeoutCause(ctx, c.limit, silent)
	defer cancel()
	body, err := c.do(ctx, http.MethodGet, path)
	if err != nil {
		return err
	}
	defer body.Close()
	if err := json.NewDecoder(body).Decode(into); err != nil {
		return fmt.Errorf("read the agent's answer: %w", err)
	}
	return nil
}

// do sends a request and returns the body of the answer.
func (c *Client) do(ctx context.Context, method, path string) (io.ReadCloser, error) {
	req, err := http.NewRequestWithContext(ctx, method, "http://nodelet"+path, nil)
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if cause := context.Cause(ctx); err != nil && cause != nil {
		return nil, fmt.Errorf("ask the agent at %s: %w", c.socket, cause)
	}
	if err != nil {
		advice := "does the agent run, and with this --root-dir? See systemctl status nodelet kubelet"
		if errors.Is(err, fs.ErrPermission) {
			advice = "run this command as root"
		}
		return nil, fmt.Errorf("ask the agent at %s: %w (%s)", c.socket, cmp.Or(errors.Unwrap(err), err), advice)
	}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	cause, _ := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	return nil, fmt.Errorf("ask the agent at %s: %s", c.socket, cmp.Or(strings.TrimSpace(string(cause)), resp.Status))
}
