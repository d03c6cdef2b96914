package main

import (
	"archive/tar"
	"compress/gzip"
	"errors"
	"io"
	"path"
	"slices"
	"strings"
	"time"
)

// writeTar writes files as a tar, with the directories above them, sorted, owned by root. prefix is put before each
// name: "./" in Debian packages.
func writeTar(w io.Writer, files []file, prefix string, when time.Time) error {
	tw := tar.NewWriter(w)
	for _, f := range withParents(files) {
		h := &tar.Header{
			Name:     prefix + strings.TrimPrefix(f.path, "/"),
			Mode:     f.mode,
			Size:     int64(len(f.body)),
			ModTime:  when,
			Uname:    "root",
			Gname:    "root",
			Typeflag: tar.TypeReg,
			Format:   tar.FormatGNU,
		}
		switch {
		case strings.HasSuffix(f.path, "/"):
			h.Typeflag = tar.TypeDir
		case f.link != "":
			h.Typeflag, h.Linkname = tar.TypeSymlink, f.link
		}
		if err := tw.WriteHeader(h); err != nil {
			return err
		}
		if _, err := tw.Write(f.body); err != nil {
			return err
		}
	}
	return tw.Close()
}

// withParents adds the missing directories above the files, as files with a slash at the end, and sorts all by name.
func withParents(files []file) []file {
	all := slices.Clone(files)
	seen := map[string]bool{}
	for _, f := range files {
		for dir := path.Dir(strings.TrimSuffix(f.path, "/")); dir != "." && dir != "/" && !seen[dir]; dir = path.Dir(dir) {
			seen[dir] = true
			all = append(all, file{path: dir + "/", mode: 0o755})
		}
	}
	slices.SortFunc(all, func(a, b file) int { return strings.Compare(a.path, b.path) })
	return slices.CompactFunc(all, func(a, b file) bool { return a.path == b.path })
}

// writeTarGz writes the same as writeTar, compressed.
func writeTarGz(w io.Writer, files []file, prefix string, when time.Time) error {
	gz, err := gzip.NewWriterLevel(w, gzip.BestCompression)
	if err != nil {
		return err
	}
	return errors.Join(writeTar(gz, files, prefix, when), gz.Close())
}

// archive is the .tar.gz for machines without a package manager. All its files are in one directory.
type archive struct {
	dir   string
	files []file
	when  time.Time
}

func (a archive) write(w io.Writer) error { return writeTarGz(w, a.files, a.dir+"/", a.when) }
