package probes

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/utils/ptr"
)

// maxRedirects is how many redirects to the same host are followed.
const maxRedirects = 10

// transport is shared by all HTTP probes, hookTransport by all HTTP hooks.
var transport, hookTransport = newTransport(true), newTransport(false)

// newTransport returns a transport that offers HTTP/2 over TLS, or not. It keeps no connections: each request has its
// own, because a healthy container must accept new clients. Certificates of containers are not verified, because they
// are not issued for pod addresses, and the node's proxy is not used for its own pods.
func newTransport(offersHTTP2 bool) *http.Transport {
	return &http.Transport{
		TLSClientConfig:     &tls.Config{InsecureSkipVerify: true},
		TLSHandshakeTimeout: 10 * time.Second,
		DisableKeepAlives:   true,
		DisableCompression:  true,
		ForceAttemptHTTP2:   offersHTTP2,
		DialContext:         dialer().DialContext,

		MaxResponseHeaderBytes: maxHeaders,
	}
}

// transportH2C is for servers that speak HTTP/2 without TLS, and only that.
var transportH2C = func() *http.Transport {
	t := transport.Clone()
	t.Protocols = new(http.Protocols)
	t.Protocols.SetUnencryptedHTTP2(true)
	return t
}()

// transportOf returns the transport for the protocol of a probe's httpGet action.
func transportOf(get *corev1.HTTPGetAction) *http.Transport {
	if ptr.Deref(get.Protocol, "") == corev1.HTTPProtocolHTTP2 {
		return transportH2C
	}
	return transport
}

// newRequest returns the request of an httpGet action. Headers are sent as given; Host, User-Agent and Accept have
// defaults, and an Accept that is given but empty is left out.
func newRequest(ctx context.Context, get *corev1.HTTPGetAction, c *corev1.Container,
	podIP, agent string) (*http.Request, error) {
	u, err := urlFor(get, c, podIP)
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return nil, err
	}
	for _, h := range get.HTTPHeaders {
		req.Header.Add(h.Name, h.Value)
	}
	if _, given := req.Header["User-Agent"]; !given {
		req.Header.Set("User-Agent", agent)
	}
	if _, given := req.Header["Accept"]; !given {
		req.Header.Set("Accept", "*/*")
	} else if req.Header.Get("Accept") == "" {
		req.Header.Del("Accept")
	}
	req.Host = req.Header.Get("Host")
	return req, nil
}

// urlFor returns the URL of an httpGet action. A path may have a query; a path that is not a URL is taken literally.
// Host and port are always those of the action, whatever the path says.
func urlFor(get *corev1.HTTPGetAction, c *corev1.Container, podIP string) (*url.URL, error) {
	port, err := resolvePort(get.Port, c)
	if err != nil {
		return nil, err
	}
	u, err := url.Parse(get.Path)
	if err != nil {
		u = &url.URL{Path: get.Path}
	}
	u.Scheme = strings.ToLower(string(get.Scheme))
	if u.Scheme == "" {
		u.Scheme = "http"
	}
	u.Host, u.Opaque = address(get.Host, podIP, port), ""
	return u, nil
}

// newClient returns a client for one request.
func newClient(via *http.Transport, limit time.Duration) *http.Client {
	return &http.Client{Timeout: limit, Transport: via, CheckRedirect: checkRedirect}
}

// checkRedirect follows redirects within a host. A redirect to another host counts as the answer: a container must not
// make the node send requests to other hosts.
func checkRedirect(req *http.Request, via []*http.Request) error {
	if req.URL.Hostname() != via[0].URL.Hostname() {
		return http.ErrUseLastResponse
	}
	if len(via) >= maxRedirects {
		return fmt.Errorf("stopped after %d redirects", maxRedirects)
	}
	return nil
}

// tryHTTP succeeds with a status from 200 to 399. If the body ends with an error, or does not end in time, that is no
// outcome: the kubelet counts it neither as success nor as failure, and some containers answer with an endless stream.
// The message of a failure never includes the body, which may contain what readers of events must not see.
func tryHTTP(req *http.Request, via *http.Transport, limit time.Duration) (Outcome, string) {
	resp, err := newClient(via, limit).Do(req)
	if err != nil {
		return Failed, err.Error()
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxOutput))
	switch {
	case err != nil:
		return Errored, (&url.Error{Op: "Get", URL: req.URL.Redacted(), Err: err}).Error()
	case resp.StatusCode < 200 || resp.StatusCode >= 400:
		return Failed, fmt.Sprintf("HTTP probe failed with statuscode: %d", resp.StatusCode)
	case resp.StatusCode >= 300:
		return Warned, fmt.Sprintf("Probe terminated redirects, Response body: %v", text(body))
	}
	return Succeeded, text(body)
}
