# An agent in Perl, which needs nothing beyond Perl itself: it asks for the opposite of a word.
use strict;
use warnings;
use HTTP::Tiny;
use JSON::PP;

sub read_json {
    open(my $file, '<', $_[0]) or die "cannot read $_[0]: $!";
    local $/;
    return decode_json(<$file>);
}

my $task  = read_json($ENV{ERL_TASK_FILE});
my $reply = HTTP::Tiny->new(timeout => 300)->post(
    "$ENV{OPENAI_BASE_URL}/chat/completions",
    {
        headers => {
            'Content-Type'  => 'application/json',
            'Authorization' => "Bearer $ENV{OPENAI_API_KEY}",
        },
        content => encode_json({
            model    => $ENV{OPENAI_MODEL},
            messages => [
                { role => 'system', content => 'Reply with one short sentence.' },
                { role => 'user',   content => $task->{prompt} },
            ],
        }),
    },
);
die "the model did not answer: $reply->{status} $reply->{content}" unless $reply->{success};

my $said  = decode_json($reply->{content})->{choices}[0]{message}{content};
my $words = () = $said =~ /\w+/g;
my $right = $said =~ /\b\Q$task->{opposite}\E\b/i;
my ($reward, $feedback) =
      !$right    ? (0,   'The right word is not in your reply.')
    : $words > 6 ? (0.5, "The right word is in your reply, but it has $words words; six are enough.")
    :              (1,   'Your reply was short and right.');

open(my $report, '>', $ENV{ERL_REPORT_FILE}) or die "cannot write the report: $!";
print $report encode_json({ reward => $reward, feedback => $feedback });
