// Package command parses and describes the commands of the program: one table of commands from which come the parser,
// the usage texts, the completion and the reference pages.
//
// It owns the rules that all commands share: asking for help never acts, an unknown word names the nearest known one, a
// wrong command line ends with exit code 2. It never does the work of a command: the packages below it do, and package
// app has the table. cmd/nodelet calls it when the first argument is not a flag. It keeps no state, so a crash leaves
// nothing behind.
package command
