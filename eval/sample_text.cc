#include "eval/sample_text.h"

#include <algorithm>
#include <iterator>
#include <string_view>

namespace sluice {
namespace {

constexpr std::string_view kProse[] = {
    "The tide tables were pinned inside the door of the customs shed, and for forty years nobody had taken them down. "
    "My grandfather read them every morning, although he knew the harbour well enough to say when the mud would show "
    "without looking. He said a man who trusts his memory over a printed page has already started to drown. Most of "
    "what he told me was of this kind: short, a little severe, and impossible to answer. It was only after his death, "
    "when I sat at his desk sorting receipts by year, that I found he had corrected the tables in pencil, column after "
    "column, wherever the printer had been wrong.",
    "A bridge is a promise about weight. The engineer who draws it does not know which lorry will cross on which "
    "night, or whether the driver will be tired; she knows only the heaviest thing the road allows, the strongest wind "
    "the valley has seen, and how steel behaves when it is cold. From these she works backwards to the size of a bolt. "
    "If she has done it properly nobody will ever think of her again. That is the odd bargain of the trade: a mistake "
    "would make her famous, and a lifetime of care leaves no trace except that people arrive.",
    "To make the soup, put the bones into cold water and bring it up slowly, so that what is cloudy rises and can be "
    "skimmed. Salt comes later. Add an onion with its skin, which gives colour, two carrots, a stick of celery, and "
    "the stalks of the parsley, keeping the leaves for the end. Then leave it alone. Most cooks ruin a broth by "
    "wanting something to do. After three hours strain it through a cloth, let it cool, and lift off the fat; what "
    "remains should be clear enough to read a newspaper through, and taste of more than went into it.",
    "Dear Ruth, the house is finished at last, except for the stairs, the windows on the north side, and the roof over "
    "the kitchen. You asked whether we are happy. I think we are, in the way that people are happy on a long walk when "
    "it has begun to rain and there is no point in turning round. Yesterday an owl came down the chimney and sat on "
    "the piano for an hour, looking at each of us in turn as if it had been asked to choose. Your brother wants to "
    "call it a good sign. I swept up the soot and did not say anything.",
    "When the first clocks came to the villages they did not agree, and at the beginning nobody minded. Noon was when "
    "the sun stood over the church, and the church was never far. It was the railway that could not bear it. A train "
    "that left one noon and arrived at another might meet a second train that was following a third, and so, within a "
    "single generation, a hundred local hours were folded into one. The sun was not consulted. There were towns that "
    "kept two minute hands on the clock for years, a black one for the timetable and a gilded one for God.",
    "The problem with the old well was not the water, which was excellent, but the rope. Every spring it was replaced, "
    "and every autumn it broke, always with the good bucket on it. The committee met about this eleven times. One "
    "party held that the rope was bought too cheaply; another, that the pulley was rough; a third, led by the "
    "schoolmaster, that the bucket was too large and that people ought to want less. In the twelfth year a girl of "
    "nine climbed down on a ladder during a drought and found, in the mud at the bottom, eleven buckets in a ring.",
};

constexpr std::string_view kPeople[] = {"Ada",     "Bertram", "Cora",   "Dunstan", "Elsa",   "Fergus", "Gwen",
                                        "Henrik",  "Ingrid",  "Jasper", "Katrin",  "Lorenz", "Mabel",  "Ned",
                                        "Ottilie", "Piers",   "Ronja",  "Silas",   "Tamsin", "Wilfred"};
constexpr std::string_view kPlaces[] = {"boatyard",    "courthouse",    "upper bridge",  "salt works",   "infirmary",
                                        "weigh house", "glass factory", "south pier",    "almshouse",    "tram depot",
                                        "watchtower",  "vineyard",      "corn exchange", "mission hall", "ropewalk"};
constexpr std::string_view kThings[] = {"sextant", "trunk",  "accordion", "plank",    "almanac", "crate",    "stove",
                                        "parcel",  "kite",   "register",  "saw",      "pump",    "cart",     "portrait",
                                        "net",     "boiler", "drawing",   "umbrella", "sledge",  "barometer"};
constexpr std::string_view kQualities[] = {"splendid", "leaking",  "nameless", "cracked", "second-hand", "polished",
                                           "doubtful", "enormous", "crooked",  "frozen",  "priceless",   "ordinary"};
constexpr std::string_view kDeeds[] = {"mended", "bought", "stole", "weighed", "varnished", "buried",
                                       "copied", "pawned", "lent",  "dragged", "unpacked",  "insured"};
constexpr std::string_view kTimes[] = {
    "On Monday",         "Before the fair",       "After the thaw",       "That same night",
    "In the third week", "At the end of harvest", "While the bells rang", "Shortly before dawn"};
constexpr std::string_view kEndings[] = {"and nobody thanked them",
                                         "which cost more than expected",
                                         "though it was forbidden",
                                         "as the old rules required",
                                         "and it rained until Friday",
                                         "to the relief of the mayor",
                                         "for reasons that were never written down",
                                         "and then went home"};
// %p, %l, %t, %q, %d, %w, %e: a person, a place, a thing, a quality, a deed, a time, an ending; %n a number.
constexpr std::string_view kSentences[] = {
    "%w %p %d the %q %t at the %l, %e.",
    "%p told %p that the %t near the %l was %q, but %p had heard otherwise.",
    "The %t was %q, so %p took it from the %l to the %l, %e.",
    "%w there were %n people at the %l, and each of them had seen a %q %t.",
    "\"Who %d my %t?\" asked %p, and nobody at the %l could say.",
    "%p paid %n shillings for the %t, and %p paid %n for the %q one.",
    "It was %p who %d the %t, %e.",
    "%w the keeper of the %l %d a %t and gave %p the key.",
    "For %n days %p waited at the %l with a %t, %e.",
    "If the %t is %q, said %p, then the %l must be closed before %p comes back.",
    "The letter from %p mentioned a %t, a %q %t and the %l, in that order.",
    "%p and %p never agreed about the %t, %e.",
};

template <size_t N>
std::string_view Pick(Rng& rng, const std::string_view (&words)[N]) {
  return words[rng.Bits() % N];
}

std::string Word(Rng& rng, char kind) {
  switch (kind) {
    case 'p':
      return std::string(Pick(rng, kPeople));
    case 'l':
      return std::string(Pick(rng, kPlaces));
    case 't':
      return std::string(Pick(rng, kThings));
    case 'q':
      return std::string(Pick(rng, kQualities));
    case 'd':
      return std::string(Pick(rng, kDeeds));
    case 'w':
      return std::string(Pick(rng, kTimes));
    case 'e':
      return std::string(Pick(rng, kEndings));
    default:
      return std::to_string(3 + rng.Bits() % 60);
  }
}

int64_t Words(std::string_view text) { return 1 + std::count(text.begin(), text.end(), ' '); }

}  // namespace

std::string SampleSentence(Rng& rng) {
  std::string sentence;
  const std::string_view pattern = Pick(rng, kSentences);
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] == '%') {
      sentence += Word(rng, pattern[++i]);
    } else {
      sentence += pattern[i];
    }
  }
  return sentence;
}

// A paragraph of prose and two of the chronicle in turn, then the chronicle alone.
std::string SampleText(uint64_t seed, int64_t words) {
  constexpr int kSentencesOfParagraph = 6;
  Rng rng(seed);
  std::string text;
  int64_t count = 0;
  for (size_t paragraph = 0; count < words; ++paragraph) {
    if (paragraph > 0) text += "\n\n";
    std::string part;
    if (paragraph % 3 == 0 && paragraph / 3 < std::size(kProse)) {
      part = kProse[paragraph / 3];
    } else {
      for (int i = 0; i < kSentencesOfParagraph; ++i) part += (i > 0 ? " " : "") + SampleSentence(rng);
    }
    count += Words(part);
    text += part;
  }
  return text;
}

}  // namespace sluice
