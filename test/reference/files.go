package reference

import (
	"fmt"
	"strings"
)

// fileOwners are the words of the table of files, with what its page says instead.
var fileOwners = map[string]string{
	"shared": "as the kubelet", "nodelet": "nodelet only", "package": "installation", "given": "only read",
}

// File is a line of the table of files.
type File struct{ Path, Owner, Text string }

// Files reads the table of files.
func Files(table string) (all []File, err error) {
	for line := range strings.Lines(table) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		head, text, _ := strings.Cut(strings.TrimSpace(line), ": ")
		path, owner, _ := strings.Cut(head, " ")
		if fileOwners[owner] == "" || text == "" {
			return nil, fmt.Errorf("read the table of files: got %q, want a path, an owner and a text", line)
		}
		all = append(all, File{path, owner, text})
	}
	return all, nil
}

// FilesPage is docs/reference/files.md.
func FilesPage(all []File) string {
	var b strings.Builder
	b.WriteString("# Reference of the files\n" + generated +
		"Files that nodelet reads, writes or locks. ROOT is `--root-dir` (`/var/lib/kubelet`), CERTS `--cert-dir` " +
		"(`/var/lib/kubelet/pki`).\n\n" +
		"- **as the kubelet**: in the same place and format, so that either agent can take over the node.\n" +
		"- **nodelet only**: the kubelet does not read it. [Rollout](../rollout.md#remove) says how to remove what a purge " +
		"of the\n  package leaves.\n" +
		"- **installation**: the package or `nodelet systemd install` writes it. It is removed with the package or by " +
		"`nodelet\n  systemd uninstall`.\n" +
		"- **only read**: nodelet never writes it.\n\n" +
		"| file | whose | content |\n|---|---|---|\n")
	for _, f := range all {
		fmt.Fprintf(&b, "| `%s` | %s | %s |\n", f.Path, fileOwners[f.Owner], cell(f.Text))
	}
	return b.String()
}

// manFiles is the section of the man page.
func manFiles(all []File) string {
	var b strings.Builder
	b.WriteString(".SH FILES\nROOT is\n.BR \\-\\-root\\-dir ,\nCERTS\n.BR \\-\\-cert\\-dir .\n")
	for _, f := range all {
		fmt.Fprintf(&b, ".TP\n.I %s\n%s\n", roff(f.Path), roff(strings.ReplaceAll(f.Text, "`", "")))
	}
	return b.String()
}
