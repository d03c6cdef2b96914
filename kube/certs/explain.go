package certs

import (
	"cmp"
	"crypto/x509"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// NewKubeconfig says how a node gets a client certificate if it can request none. It is for the node of the certificate
// that it has had, if there is one: its pods are those of that node, whatever the host name is now.
func NewKubeconfig(node string, had *x509.Certificate, kubeconfig string) string {
	node = cmp.Or(nodeOf(had), node)
	return "put a new kubeconfig in the place of " + kubeconfig + " and restart the agent; " +
		"on a node of the control plane, `kubeadm kubeconfig user --org system:nodes --client-name " +
		nodeSubject(node).CommonName + "` prints one, but its server may have to be corrected"
}

// JoinAgain says what to do if the client certificate is that of a node of another name than the machine's.
func JoinAgain(node string) string {
	return "add --hostname-override=" + node + ", or join the cluster again with kubeadm reset and kubeadm join, " +
		"which ends all pods"
}

// adviceWithoutBootstrap says how the node gets a certificate if its bootstrap kubeconfig cannot be used.
func (c *Client) adviceWithoutBootstrap(now time.Time) string {
	if _, err := os.Stat(c.cfg.Kubeconfig); errors.Is(err, fs.ErrNotExist) { // it has never joined
		return "write a kubeconfig with a bootstrap token to " + c.cfg.Bootstrap +
			", or join the cluster first, such as with kubeadm join"
	}
	had := c.cfg
	had.Bootstrap = "" // else an expired certificate is an error
	leaf, _ := Present(had, now)
	return NewKubeconfig(c.cfg.Node, leaf, c.cfg.Kubeconfig)
}

// explain adds to an error of a request to the API server what to do about it. with is the file of the credentials.
func explain(err error, with string, now time.Time) error {
	var unknown x509.UnknownAuthorityError
	var invalid x509.CertificateInvalidError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &unknown):
		return fmt.Errorf("%w; the CA in %s did not sign the API server's certificate: put the cluster's CA there", err, with)
	case errors.As(err, &invalid) && invalid.Reason == x509.Expired:
		return fmt.Errorf("%w; the API server's certificate is valid from %s to %s, and the clock of this machine says %s: "+
			"renew the certificate or set the clock",
			err, stamp(invalid.Cert.NotBefore), stamp(invalid.Cert.NotAfter), stamp(now))
	case apierrors.IsUnauthorized(err):
		return fmt.Errorf("%w; the API server does not accept the credentials in %s: a bootstrap token may have expired "+
			"(kubeadm token create makes another), a certificate may be of another cluster", err, with)
	case apierrors.IsForbidden(err):
		return fmt.Errorf("%w; the credentials in %s may not request certificates: "+
			"bind the cluster role system:node-bootstrapper to them", err, with)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w; run the agent as root", err)
	}
	return err
}
